//! Refuses file systems that cannot hold the database, and a file that is mounted by itself.
//!
//! The list of mounts (`/proc/self/mountinfo`) is read first, because it has the names of the file
//! systems' kinds. If there is no list, or the name is not one that is refused, the kernel's number
//! of the kind decides. The kernel also reports whether the file is a mount point.

use std::path::Path;

use super::file::directory_of;
use crate::store::{Error, Result};

/// Refuses a place where acknowledged jobs could be lost. `path` is the file itself, with links
/// resolved.
pub(super) fn check(path: &Path, target: &str) -> Result<()> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let Ok(directory) = directory_of(path).canonicalize() else { return Ok(()) };
    let refused = if is_mount_point(&mounts, path) || kernel::is_mount_point(path) {
        Some(Refused::MountedAlone)
    } else {
        kind_of(&mounts, &directory, kernel::kind(&directory))
    };
    refused.map_or(Ok(()), |refused| Err(refused.error(path, target)))
}

/// Why the file cannot be where it is.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Refused {
    /// A file system of this kind does not carry locks and shared memory to every process that can
    /// open the file: the database would be corrupted silently.
    Network(String),
    /// It is unknown whether a file system of this kind is local to this machine.
    Unknown(String),
    /// The file is a mount point, as in a container that was given this one file. SQLite's log
    /// beside it would stay in the container, and be lost with it.
    MountedAlone,
}

impl Refused {
    fn error(&self, path: &Path, target: &str) -> Error {
        let (problem, next) = match self {
            Refused::Network(kind) => (
                format!("it is on a network file system ({kind}), where SQLite's locks do not hold"),
                "use a file on a local disk, or PostgreSQL".to_owned(),
            ),
            Refused::Unknown(kind) => (
                format!(
                    "it is on a file system ({kind}) of which it is not known whether SQLite's locks hold on it"
                ),
                "use a file on a local disk, or PostgreSQL".to_owned(),
            ),
            Refused::MountedAlone => (
                "this one file is mounted by itself, so that the files which SQLite keeps beside it (-wal, -shm), and \
                 acknowledged jobs in them, would be lost with the container"
                    .to_owned(),
                format!("mount its directory, {}, instead of the file", directory_of(path).display()),
            ),
        };
        Error::Unusable { target: target.to_owned(), problem, next }
    }
}

/// What is wrong with the file system of `directory`, judged by the list of mounts and by the
/// kernel's number.
fn kind_of(mounts: &str, directory: &Path, number: Option<u64>) -> Option<Refused> {
    match nearest(mounts, directory) {
        Some(kind) => judge(kind).or_else(|| {
            // An unknown name may belong to a file system whose number is known.
            number.filter(|number| *number != FUSE).and_then(judge_number)
        }),
        None => number.and_then(judge_number),
    }
}

/// The kind of the file system that is mounted nearest above `directory`. If several are mounted at
/// one point, the last one hides the others.
fn nearest<'a>(mounts: &'a str, directory: &Path) -> Option<&'a str> {
    let holding = lines(mounts).filter(|(point, _)| directory.starts_with(point));
    holding.max_by_key(|(point, _)| point.len()).map(|(_, kind)| kind)
}

/// Whether something is mounted on exactly this file.
fn is_mount_point(mounts: &str, path: &Path) -> bool {
    lines(mounts).any(|(point, _)| Path::new(&point) == path)
}

/// The mount points and kinds of `/proc/self/mountinfo`.
fn lines(mounts: &str) -> impl Iterator<Item = (String, &str)> {
    mounts.lines().filter_map(|line| {
        let (place, kind) = line.split_once(" - ")?;
        Some((unescape(place.split(' ').nth(4)?), kind.split(' ').next()?))
    })
}

/// Decodes octal escapes: the kernel writes a space, a tab, a newline and a backslash in this way.
fn unescape(name: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .iter()
        .fold(name.to_owned(), |name, (escape, plain)| name.replace(escape, plain))
}

/// File systems that other machines write to as well, or that are shared with a host.
const NETWORK: [&str; 30] = [
    "9p",
    "afs",
    "acfs",
    "beegfs",
    "ceph",
    "cifs",
    "coda",
    "drvfs",
    "gfs2",
    "glusterfs",
    "gpfs",
    "lustre",
    "ncpfs",
    "nfs",
    "nfs4",
    "ocfs2",
    "orangefs",
    "panfs",
    "prl_fs",
    "pvfs2",
    "smb2",
    "smb3",
    "smbfs",
    "vboxsf",
    "virtiofs",
    "vmhgfs",
    "davfs",
    "davfs2",
    "sshfs",
    "s3fs",
];

/// File systems in user space that are known to be local. Any other may be on another machine.
const LOCAL_FUSE: [&str; 14] = [
    "fuseblk",
    "fuse.bindfs",
    "fuse.encfs",
    "fuse.exfat",
    "fuse.exfat-fuse",
    "fuse.ext2",
    "fuse.ext3",
    "fuse.ext4",
    "fuse.fuse-ext2",
    "fuse.fuse-overlayfs",
    "fuse.fuse2fs",
    "fuse.gocryptfs",
    "fuse.ntfs",
    "fuse.ntfs-3g",
];

/// File systems in user space that are known to be on other machines.
const NETWORK_FUSE: [&str; 28] = [
    "blobfuse",
    "blobfuse2",
    "ceph-fuse",
    "curlftpfs",
    "davfs",
    "gcsfuse",
    "geesefs",
    "glusterfs",
    "goofys",
    "grpcfuse",
    "hdfs",
    "httpfs",
    "juicefs",
    "mfs",
    "moosefs",
    "mount-s3",
    "mountpoint-s3",
    "objectivefs",
    "osxfs",
    "rclone",
    "s3fs",
    "s3ql",
    "seaweedfs",
    "smbnetfs",
    "sshfs",
    "vmhgfs-fuse",
    "weed",
    "yas3fs",
];

fn judge(kind: &str) -> Option<Refused> {
    if NETWORK.contains(&kind) {
        return Some(Refused::Network(kind.to_owned()));
    }
    let fuse = kind == "fuse" || kind == "fuseblk" || kind.starts_with("fuse.");
    if !fuse || LOCAL_FUSE.contains(&kind) {
        return None;
    }
    let of_network =
        kind.strip_prefix("fuse.").is_some_and(|program| NETWORK_FUSE.contains(&program));
    let kind = kind.to_owned();
    Some(if of_network { Refused::Network(kind) } else { Refused::Unknown(kind) })
}

const FUSE: u64 = 0x6573_5546;

/// The kernel's numbers of network file systems.
const NUMBERS: [(u64, &str); 21] = [
    (0x6969, "nfs"),
    (0x517b, "smbfs"),
    (0xff53_4d42, "cifs"),
    (0xfe53_4d42, "smb3"),
    (0x0102_1997, "9p"),
    (0x00c3_6400, "ceph"),
    (0x5346_414f, "afs"),
    (0x6b41_4653, "afs"),
    (0x7375_7245, "coda"),
    (0x0bd0_0bd0, "lustre"),
    (0x4750_4653, "gpfs"),
    (0x786f_4256, "vboxsf"),
    (0x564c, "ncpfs"),
    (0x1983_0326, "beegfs"),
    (0x7461_636f, "ocfs2"),
    (0x0116_1970, "gfs2"),
    (0xbacb_acbc, "vmhgfs"),
    (0x2003_0528, "orangefs"),
    (0xaad7_aaea, "panfs"),
    (0x6163_6673, "acfs"),
    (0x7c7c_6673, "prl_fs"),
];

fn judge_number(number: u64) -> Option<Refused> {
    if number == FUSE {
        return Some(Refused::Unknown("fuse".to_owned()));
    }
    let known = NUMBERS.iter().find(|(known, _)| *known == number);
    known.map(|(_, kind)| Refused::Network((*kind).to_owned()))
}

/// What the kernel reports. It has no names, but needs no `/proc`.
#[cfg(target_os = "linux")]
mod kernel {
    use std::path::Path;

    use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags, statfs, statx};

    /// The number of the kind of file system.
    pub(super) fn kind(directory: &Path) -> Option<u64> {
        // Only 32 bits count; on some machines the value is sign-extended.
        #[allow(
            clippy::unnecessary_cast,
            clippy::cast_sign_loss,
            reason = "its type is the machine's"
        )]
        statfs(directory).ok().map(|found| found.f_type as u64 & 0xffff_ffff)
    }

    pub(super) fn is_mount_point(path: &Path) -> bool {
        let found = statx(CWD, path, AtFlags::empty(), StatxFlags::TYPE);
        found.is_ok_and(|found| found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
    }
}

#[cfg(not(target_os = "linux"))]
mod kernel {
    use std::path::Path;

    pub(super) fn kind(_: &Path) -> Option<u64> {
        None
    }

    pub(super) fn is_mount_point(_: &Path) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines of `/proc/self/mountinfo`.
    fn mounts(mounts: &[(&str, &str)]) -> String {
        let line = |(n, (point, kind)): (usize, &(&str, &str))| {
            format!("{} 1 8:{n} / {point} rw,relatime shared:1 - {kind} /dev/sd rw\n", n + 20)
        };
        mounts.iter().enumerate().map(line).collect()
    }

    fn found(mounted: &[(&str, &str)], path: &str) -> Option<Refused> {
        kind_of(&mounts(mounted), Path::new(path), None)
    }

    fn network(kind: &str) -> Option<Refused> {
        Some(Refused::Network(kind.to_owned()))
    }

    #[test]
    fn a_directory_on_a_network_file_system_is_recognised_by_its_nearest_mount() {
        let mounted = [("/", "ext4"), ("/mnt/share", "nfs4"), ("/mnt/share/local", "xfs")];
        assert_eq!(found(&mounted, "/srv/me"), None);
        assert_eq!(found(&mounted, "/mnt/share/jobs"), network("nfs4"));
        assert_eq!(found(&mounted, "/mnt/shared"), None);
        assert_eq!(found(&mounted, "/mnt/share/local/x"), None);
        let mounted = [("/mnt/share", "nfs4"), ("/", "ext4")];
        assert_eq!(found(&mounted, "/mnt/share/jobs"), network("nfs4"), "wherever it is listed");
        let mounted = [("/", "ext4"), ("/mnt", "nfs4"), ("/mnt", "xfs")];
        assert_eq!(found(&mounted, "/mnt/jobs"), None, "the later mount hides the earlier");
    }

    #[test]
    fn a_mount_point_with_a_space_is_recognised() {
        let mounted = [("/", "ext4"), ("/mnt/my\\040share", "nfs4")];
        assert_eq!(found(&mounted, "/mnt/my share/jobs"), network("nfs4"));
    }

    #[test]
    fn what_is_shared_with_a_host_or_with_other_machines_is_refused() {
        for kind in [
            "9p",
            "virtiofs",
            "vboxsf",
            "lustre",
            "gpfs",
            "nfs",
            "cifs",
            "fuse.sshfs",
            "fuse.s3fs",
            "fuse.rclone",
            "fuse.gcsfuse",
            "fuse.glusterfs",
            "fuse.juicefs",
            "fuse.grpcfuse",
        ] {
            assert_eq!(found(&[("/", "ext4"), ("/mnt", kind)], "/mnt/x"), network(kind));
        }
        for kind in ["fuse", "fuse.of-my-own"] {
            let unknown = Some(Refused::Unknown(kind.to_owned()));
            assert_eq!(found(&[("/", "ext4"), ("/mnt", kind)], "/mnt/x"), unknown);
        }
        for kind in [
            "ext4",
            "xfs",
            "btrfs",
            "zfs",
            "tmpfs",
            "overlay",
            "fuseblk",
            "fuse.ext4",
            "fuse.fuse-overlayfs",
        ] {
            assert_eq!(found(&[("/", "ext4"), ("/mnt", kind)], "/mnt/x"), None, "{kind}");
        }
    }

    #[test]
    fn without_a_list_of_mounts_the_kernels_number_tells() {
        let by_number = |number| kind_of("", Path::new("/mnt/x"), Some(number));
        assert_eq!(by_number(0x6969), network("nfs"));
        assert_eq!(by_number(0x0102_1997), network("9p"));
        assert_eq!(by_number(FUSE), Some(Refused::Unknown("fuse".to_owned())));
        assert_eq!(by_number(0xef53), None, "ext4");
        // With the list, a file system in user space has a name, which says more than the number.
        let mounted = mounts(&[("/", "ext4"), ("/mnt", "fuseblk")]);
        assert_eq!(kind_of(&mounted, Path::new("/mnt/x"), Some(FUSE)), None);
        let mounted = mounts(&[("/", "ext4"), ("/mnt", "new-name-for-nfs")]);
        assert_eq!(kind_of(&mounted, Path::new("/mnt/x"), Some(0x6969)), network("nfs"));
    }

    #[test]
    fn the_kernel_knows_the_kind_and_the_mount_points() {
        assert!(kernel::kind(Path::new("/")).is_some());
        assert!(kernel::is_mount_point(Path::new("/proc")));
        assert!(!kernel::is_mount_point(Path::new("/proc/self/mountinfo")));
    }

    #[test]
    fn a_file_that_is_mounted_by_itself_is_recognised_and_its_directory_is_not_blamed() {
        let text = mounts(&[("/", "overlay"), ("/data/jobs.db", "ext4"), ("/etc/hosts", "ext4")]);
        assert!(is_mount_point(&text, Path::new("/data/jobs.db")));
        assert!(!is_mount_point(&text, Path::new("/data/jobs.db-wal")));
        assert!(!is_mount_point(&text, Path::new("/data/other.db")));
        let volume = mounts(&[("/", "overlay"), ("/data", "ext4")]);
        assert!(!is_mount_point(&volume, Path::new("/data/jobs.db")));
        let told = Refused::MountedAlone.error(Path::new("/data/jobs.db"), "jobs.db").to_string();
        assert!(
            told.contains("mounted by itself") && told.contains("mount its directory, /data"),
            "{told}"
        );
    }
}
