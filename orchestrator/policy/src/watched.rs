//! Announces versions from a directory in which the trainer leaves checkpoints.
//!
//! A checkpoint is a directory whose name ends in the number of its version, for example `step-7`. It is
//! announced once it contains a file `READY`, which the trainer creates last. The announcement has the path of
//! this directory, and the directory's name as its label. If there are several checkpoints, only the checkpoint
//! with the greatest number is announced. The trainer may remove old checkpoints.
//!
//! # Deliberately absent
//! Notifications of the file system are not used: checkpoints are often on network file systems, which do not
//! send notifications.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::announcement::check;
use super::{Announcement, PolicyState};
use rolldock_dispatch::version_of_label;
use rolldock_scope::Scope;

/// The file that marks a checkpoint as complete.
const MARKER: &str = "READY";
/// The time between two readings of the directory.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum number of entries. A directory with more entries is not a directory of checkpoints.
const ENTRIES_MAX: usize = 1 << 16;

/// Announces checkpoints in `directory` until the scope ends, including checkpoints that exist at the start.
///
/// Cancel-safe.
pub(super) async fn follow(directory: PathBuf, state: PolicyState, scope: Scope) {
    let end = scope.token().clone();
    let mut problem = None;
    loop {
        let (looked_in, above) = (directory.clone(), state.announced());
        let looked = scope.spawn_blocking("policy directory", move || newest_ready(&looked_in, above)).await;
        let found = looked.map_err(io::Error::other).flatten();
        let problem_now = found.as_ref().err().map(ToString::to_string);
        if let Some(reason) = problem_now.as_ref().filter(|_| problem != problem_now) {
            tracing::warn!(directory = %directory.display(), reason, "cannot search for policy versions; the next search follows");
        }
        problem = problem_now;
        if let Ok(Some(announcement)) = found {
            announce(&state, announcement);
        }
        if end.run_until_cancelled(tokio::time::sleep(LOOK_INTERVAL)).await.is_none() {
            return;
        }
    }
}

fn announce(state: &PolicyState, announcement: Announcement) {
    let version = announcement.version;
    match state.announce(announcement) {
        Ok(_) => tracing::info!(version, "a checkpoint is ready"),
        // Another source has announced a newer version since the directory was read.
        Err(error) => tracing::debug!(%error, "a checkpoint is passed over"),
    }
}

/// The complete checkpoint with the greatest number above `above`. If two checkpoints have the same
/// number, the first by name is returned.
fn newest_ready(directory: &Path, above: u64) -> io::Result<Option<Announcement>> {
    let mut candidates = Vec::new();
    for (count, entry) in fs::read_dir(directory)?.enumerate() {
        if count >= ENTRIES_MAX {
            return Err(io::Error::other(format!("expected at most {ENTRIES_MAX} entries")));
        }
        let announced = entry?.file_name().to_str().and_then(|name| announcement_of(directory, name));
        candidates.extend(announced.filter(|announcement| announcement.version > above));
    }
    candidates.sort_by(|left, right| right.version.cmp(&left.version).then(left.label.cmp(&right.label)));
    let is_ready = |announcement: &Announcement| {
        announcement.path.as_ref().is_some_and(|path| Path::new(path).join(MARKER).is_file())
    };
    Ok(candidates.into_iter().find(is_ready))
}

/// The announcement of the checkpoint `name`. It is `None` if the name does not end in a valid version, or if
/// the path is not UTF-8.
fn announcement_of(directory: &Path, name: &str) -> Option<Announcement> {
    let announcement = Announcement {
        version: version_of_label(name)?,
        label: name.into(),
        path: Some(directory.join(name).to_str()?.to_owned()),
        payload: None,
    };
    check(&announcement).is_ok().then_some(announcement)
}

#[cfg(test)]
mod tests;
