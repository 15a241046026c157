//! Versions by files: a directory in which the trainer leaves checkpoints.
//!
//! A checkpoint is a directory whose name ends in its version's number, `step-7` say; it is announced when
//! there is a file `READY` in it, which the trainer creates last. Its path is what is announced, its name is
//! the label. The greatest number counts; those below are passed over, and whether old ones are removed is no
//! matter.
//!
//! # Deliberately absent
//! Notifications of the file system: checkpoints lie on network file systems, which do not send them.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::announcement::check;
use super::{Announcement, PolicyState, version_of_label};
use rolldock_scope::Scope;

/// The file that says that a checkpoint is whole.
const MARKER: &str = "READY";
/// Between two looks.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// A directory with more in it is not one of checkpoints.
const ENTRIES_MAX: usize = 1 << 16;

/// Announces what appears in `directory`, until the scope ends. What is there already counts too.
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
            tracing::warn!(directory = %directory.display(), reason, "no policy versions can be found here; it is looked at again");
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
        // A newer version was announced by another source since the look.
        Err(error) => tracing::debug!(%error, "a checkpoint is passed over"),
    }
}

/// The whole checkpoint with the greatest number above `above`; of two with the same number the first by
/// name.
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

/// `None` for a name that does not end in a number, or that no server could be told.
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
