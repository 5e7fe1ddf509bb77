"""Train herds that do not fit on the device: copy blocks of members to the device in turn, train and copy them back."""
