//! The resources of a candidate while it runs: its file, its directories, its user and its permit. All of
//! them are released when the last clone of its [`Place`] is dropped.

use std::fs::Permissions;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tempfile::TempDir;
use tokio::process::Command;
use tokio::runtime::Handle;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

use super::TOOLS_PATH;
use super::users::User;
use crate::tasks;

/// The program's name in its directory.
pub(super) const PROGRAM: &str = "candidate.py";
/// The directory in which the root of a sandbox is built.
const ROOT: &str = "root";
/// All users may enter the directory, but only this process's user may list it or write to it.
const PASSABLE: u32 = 0o711;
const READABLE: u32 = 0o644;
const PRIVATE: u32 = 0o700;
/// The time limit of a removal.
const REMOVE_MAX: Duration = Duration::from_secs(60);

/// A candidate's directories, user and permit. Cheap to clone; dropping the last clone cleans up.
#[derive(Clone)]
pub(in crate::external) struct Place(Arc<Kept>);

/// The resources of a place besides its files.
pub(super) struct Owner {
    pub(super) user: Option<User>,
    pub(super) turn: OwnedSemaphorePermit,
    /// Runs the task that cleans up.
    pub(super) tracker: TaskTracker,
    pub(super) runtime: Handle,
}

struct Kept {
    /// The directory. Like `owner`, it is `None` only while the place is being dropped.
    directory: Option<TempDir>,
    /// The path without symbolic links.
    path: PathBuf,
    program: PathBuf,
    runs: AtomicU32,
    owner: Option<Owner>,
}

impl Place {
    /// Writes `program` into a new directory in `parent`. Blocking.
    pub(super) fn new(parent: &Path, program: &str, owner: Owner) -> std::io::Result<Self> {
        let directory = tempfile::Builder::new().prefix("rolldock-code-").tempdir_in(parent)?;
        let path = directory.path().canonicalize()?;
        let file = path.join(PROGRAM);
        std::fs::write(&file, program)?;
        std::fs::set_permissions(&file, Permissions::from_mode(READABLE))?;
        std::fs::create_dir(path.join(ROOT))?;
        std::fs::set_permissions(&path, Permissions::from_mode(PASSABLE))?;
        let (directory, runs, owner) = (Some(directory), AtomicU32::new(0), Some(owner));
        Ok(Self(Arc::new(Kept { directory, path, program: file, runs, owner })))
    }

    /// The path of the whole directory, without symbolic links.
    pub(super) fn path(&self) -> &Path {
        &self.0.path
    }

    /// The program's file.
    pub(super) fn program(&self) -> &Path {
        &self.0.program
    }

    /// The empty directory on which a sandbox mounts its root.
    pub(super) fn root(&self) -> PathBuf {
        self.0.path.join(ROOT)
    }

    /// The user of the candidate's processes; `None` if it is this process's user.
    pub(super) fn user(&self) -> Option<u32> {
        self.0.owner.as_ref()?.user.as_ref().map(|user| user.id)
    }

    /// Creates a working directory that the candidate may write to, for runs outside a namespace.
    pub(super) fn work(&self) -> std::io::Result<PathBuf> {
        let number = self.0.runs.fetch_add(1, Ordering::Relaxed);
        let work = self.0.path.join(format!("work-{number}"));
        std::fs::DirBuilder::new().mode(PRIVATE).create(&work)?;
        if let Some(user) = self.user() {
            chown(&work, Some(user), Some(user))?;
        }
        Ok(work)
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        let (Some(directory), Some(owner)) = (self.directory.take(), self.owner.take()) else { return };
        let Owner { user, turn, tracker, runtime } = owner;
        let remove = async move {
            remove(directory, user.is_some()).await;
            drop((user, turn));
        };
        tasks::spawn_on(&tracker, "sandbox removal", remove, &runtime);
    }
}

/// Removes a directory with the command `rm`: a candidate can nest directories deeper than a recursion in
/// this process can follow. It can also make directories unreadable for its own user; `chmod` undoes this.
async fn remove(directory: TempDir, is_privileged: bool) {
    let path = directory.path().to_owned();
    if !succeeds("rm", &["-rf"], &path).await && !is_privileged {
        succeeds("chmod", &["-R", "u+rwx"], &path).await;
        succeeds("rm", &["-rf"], &path).await;
    }
    if path.symlink_metadata().is_ok() {
        tracing::warn!(?path, "a candidate's directory could not be removed");
    }
    // Files that could not be removed are left to an operator.
    let _ = directory.keep();
}

async fn succeeds(program: &str, arguments: &[&str], path: &Path) -> bool {
    let mut command = Command::new(program);
    command.args(arguments).arg("--").arg(path).env_clear().env("PATH", TOOLS_PATH).kill_on_drop(true);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    matches!(timeout(REMOVE_MAX, command.status()).await, Ok(Ok(status)) if status.success())
}
