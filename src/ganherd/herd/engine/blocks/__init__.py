"""Train herds that do not fit on the device: the engine for blocks of members, their places on the device, and the copies."""
