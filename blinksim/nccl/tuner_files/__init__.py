"""Files of rules for the tuners of NCCL, RCCL and NCCLX, and the plugin that follows them."""
