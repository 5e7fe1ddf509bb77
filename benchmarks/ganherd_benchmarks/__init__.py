"""What `ganherd bench` needs beyond the installed package.

Other ways to train many GANs, the limits of a machine, the cost of a cellular iteration, and scaling over ranks.
"""
