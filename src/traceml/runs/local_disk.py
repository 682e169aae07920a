"""Which file systems are disks of this machine. Others may stop answering, and block all who touch them."""

import os
import re
from pathlib import Path
from typing import Final

LOCAL: Final = frozenset(
    {
        *("ext2", "ext3", "ext4", "xfs", "btrfs", "bcachefs", "zfs", "f2fs", "jfs", "reiserfs", "nilfs2"),
        *("vfat", "exfat", "ntfs", "ntfs3", "fuseblk", "hfsplus", "apfs"),
        *("tmpfs", "overlay", "aufs", "rootfs"),
    }
)
"""Everything else counts as a network: a new kind of one must not stall a training."""
MOUNTS: Final = "/proc/self/mountinfo"


def is_local(path: str | Path) -> bool:
    """Whether this path is on a disk of this machine; True where that is not known (not Linux)."""
    try:
        mounts = Path(MOUNTS).read_text(errors="surrogateescape")
    except OSError:
        return True
    place, kind, depth = os.path.realpath(path), "", -1
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        mount = re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), before.split()[4])
        is_above = mount in ("/", place) or place.startswith(mount + "/")
        if is_above and len(mount) >= depth:  # of two on the same place, the later one hides the other
            kind, depth = after.split()[0], len(mount)
    return kind in LOCAL
