//! The server's socket. At most one live server owns a socket's file. A new server replaces the file of a
//! dead server. A socket without a file ends with its server.

use std::fs::{self, File, OpenOptions, Permissions, TryLockError};
use std::io::{ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with};

use super::config::LocalServiceConfig;
use super::pool::Regions;
use crate::QueueError;
use crate::edges::wire::LocalPlace;

/// The maximum number of connections that wait to be accepted.
const BACKLOG: i32 = 1024;
/// The maximum number of attempts to open a lock file, which another server may be removing as it ends.
const LOCK_ATTEMPTS: usize = 100;

/// A socket that clients of this host can connect to. If it has a file, the file is removed when this value
/// is dropped.
#[derive(Debug)]
pub struct LocalListener {
    pub(super) listener: UnixListener,
    pub(super) regions: Regions,
    pub(super) config: LocalServiceConfig,
    pub(super) life: u64,
    name: SocketName,
}

#[derive(Debug)]
enum SocketName {
    File {
        path: PathBuf,
        lock: SocketLock,
    },
    /// A name in the abstract namespace of Linux, without the null byte.
    Abstract(String),
}

/// The lock on `PATH.lock`, held as long as the server runs. The operating system releases it, however the
/// server dies.
#[derive(Debug)]
struct SocketLock {
    path: PathBuf,
    _file: File,
}

impl SocketLock {
    fn acquire(socket: &Path) -> Result<Self, QueueError> {
        let mut name = socket.as_os_str().to_owned();
        name.push(".lock");
        let path = PathBuf::from(name);
        for _ in 0..LOCK_ATTEMPTS {
            let opened = OpenOptions::new().create(true).truncate(false).read(true).write(true).open(&path);
            let mut file = opened.map_err(QueueError::io("open", &path))?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => {
                    let mut owner = String::new();
                    // The owner's name is only for the message. The lock alone shows that the socket is in
                    // use.
                    let _ = file.read_to_string(&mut owner);
                    return Err(QueueError::InUse { dir: socket.to_owned(), owner: owner.trim().to_owned() });
                }
                Err(TryLockError::Error(error)) => return Err(QueueError::io("lock", &path)(error)),
            }
            // A server that ended in between may have removed the opened file. The next attempt then opens
            // another file.
            let locked = file.metadata().map_err(QueueError::io("read", &path))?;
            if fs::metadata(&path).is_ok_and(|there| there.ino() == locked.ino()) {
                let owner = format!("process {}\n", std::process::id());
                let written = file.set_len(0).and_then(|()| file.write_all(owner.as_bytes()));
                written.map_err(QueueError::io("write", &path))?;
                return Ok(Self { path, _file: file });
            }
        }
        Err(QueueError::InUse { dir: socket.to_owned(), owner: "servers that start and end".to_owned() })
    }
}

impl LocalListener {
    /// Creates the socket, which only its owner may open (0600). The file of a dead server is replaced. If a
    /// live server owns the file, the error is [`QueueError::InUse`].
    pub fn bind(path: impl Into<PathBuf>, config: LocalServiceConfig) -> Result<Self, QueueError> {
        let path = path.into();
        let lock = SocketLock::acquire(&path)?;
        match fs::symlink_metadata(&path) {
            Ok(there) if there.file_type().is_socket() => {
                fs::remove_file(&path).map_err(QueueError::io("remove", &path))?;
            }
            Ok(_) => {
                let reason = "expected no file or a socket, found a file of another kind".to_owned();
                return Err(QueueError::Io { what: "bind".into(), path, reason });
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(QueueError::io("read", &path)(error)),
        }
        let listener = listening(&path).map_err(QueueError::io("bind", &path))?;
        Ok(Self::new(listener, SocketName::File { path, lock }, rand::random(), config))
    }

    /// Creates a socket without a file, with a random name. Only processes of the same user, or of root, get
    /// an answer. Clients find the socket by its [`place`](Self::place). The socket leaves nothing behind.
    pub fn unnamed(config: LocalServiceConfig) -> Result<Self, QueueError> {
        let life = rand::random();
        let name = format!("rolldock-queue-{life:016x}");
        let listener = listening_without_file(&name).map_err(QueueError::io("bind", format!("@{name}")))?;
        Ok(Self::new(listener, SocketName::Abstract(name), life, config))
    }

    fn new(listener: UnixListener, name: SocketName, life: u64, config: LocalServiceConfig) -> Self {
        let regions = Regions::new(config.idle_bytes_max);
        Self { listener, regions, config, life, name }
    }

    /// Where clients find this server.
    pub fn place(&self) -> LocalPlace {
        let socket = match &self.name {
            SocketName::File { path, .. } => {
                // A path that cannot be made absolute is found only from the same working directory.
                let path = std::path::absolute(path).unwrap_or_else(|_| path.clone());
                path.to_string_lossy().into_owned()
            }
            SocketName::Abstract(name) => format!("@{name}"),
        };
        LocalPlace { socket, life: self.life }
    }

    /// Whether a process of the user `uid` gets answers. For a socket with a file, the operating system has
    /// already checked the file's permissions.
    pub(super) fn admits(&self, uid: u32) -> bool {
        match self.name {
            SocketName::File { .. } => true,
            SocketName::Abstract(_) => uid == 0 || uid == rustix::process::geteuid().as_raw(),
        }
    }

    /// The server's regions, for their statistics.
    pub fn regions(&self) -> Regions {
        self.regions.clone()
    }
}

/// Makes a socket that listens. No client can connect before the permissions are set, because the socket does
/// not listen until then.
fn listening(path: &Path) -> std::io::Result<UnixListener> {
    let socket = stream_socket()?;
    bind(&socket, &SocketAddrUnix::new(path)?)?;
    fs::set_permissions(path, Permissions::from_mode(0o600))?;
    listen(&socket, BACKLOG)?;
    Ok(socket.into())
}

fn listening_without_file(name: &str) -> std::io::Result<UnixListener> {
    let socket = stream_socket()?;
    bind(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
    listen(&socket, BACKLOG)?;
    Ok(socket.into())
}

fn stream_socket() -> std::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?)
}

impl Drop for LocalListener {
    fn drop(&mut self) {
        let SocketName::File { path: socket, lock } = &self.name else { return };
        // The lock is still held, so these files belong to this server.
        for path in [socket, &lock.path] {
            if let Err(error) = fs::remove_file(path) {
                tracing::debug!(path = %path.display(), %error, "a socket's file stays behind");
            }
        }
    }
}
