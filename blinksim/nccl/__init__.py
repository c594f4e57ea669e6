"""NCCL: its files, its search for channels, its tuner, its logs; and schedules as files that it loads."""
