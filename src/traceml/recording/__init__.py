"""The row format: a header that names its columns, then fixed-width rows published one by one."""
