"""Train herds that do not fit on the device: blocks of members are copied to the device in turn, trained and copied back."""
