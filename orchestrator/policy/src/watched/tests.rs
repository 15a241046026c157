#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use tempfile::TempDir;

use super::*;
use crate::{PolicyMode, PolicyTerms};

struct Rig {
    folder: TempDir,
    state: PolicyState,
    scope: Scope,
}

impl Rig {
    fn new() -> Self {
        let terms = PolicyTerms { mode: PolicyMode::FullyAsync, max_staleness: 1 };
        Self { folder: tempfile::tempdir().unwrap(), state: PolicyState::new(terms, 0), scope: Scope::new() }
    }

    fn write_weights(folder: &Path, name: &str) {
        fs::create_dir_all(folder.join(name)).unwrap();
        fs::write(folder.join(name).join("model.safetensors"), "weights").unwrap();
    }

    fn unfinished(&self, name: &str) {
        Self::write_weights(self.folder.path(), name);
    }

    fn finished(&self, name: &str) {
        self.unfinished(name);
        fs::write(self.folder.path().join(name).join(MARKER), "").unwrap();
    }

    fn newest_above(&self, above: u64) -> Option<(u64, String)> {
        let found = newest_ready(self.folder.path(), above).unwrap()?;
        assert_eq!(found.path.clone(), Some(format!("{}/{}", self.folder.path().display(), found.label)));
        Some((found.version, found.label.to_string()))
    }

    fn follow(&self) -> tokio_util::task::AbortOnDropHandle<()> {
        let directory = self.folder.path().join("checkpoints");
        self.scope.spawn("policy directory", follow(directory, self.state.clone(), self.scope.clone()))
    }
}

#[test]
fn the_newest_whole_one_counts() {
    let rig = Rig::new();
    assert_eq!(rig.newest_above(0), None);
    rig.finished("step-7");
    rig.finished("step-12");
    rig.finished("step-9");
    rig.unfinished("step-13");
    assert_eq!(rig.newest_above(0), Some((12, "step-12".to_owned())));
    assert_eq!(rig.newest_above(11), Some((12, "step-12".to_owned())));
    assert_eq!(rig.newest_above(12), None, "the one without a marker is still being written");
    rig.finished("step-13");
    assert_eq!(rig.newest_above(12), Some((13, "step-13".to_owned())));
    fs::remove_dir_all(rig.folder.path().join("step-13")).unwrap();
    assert_eq!(rig.newest_above(12), None);
}

#[test]
fn directories_that_are_not_checkpoints_are_ignored() {
    let rig = Rig::new();
    fs::write(rig.folder.path().join("log-99"), "a file").unwrap();
    rig.finished("latest");
    rig.finished("99999999999999999999999");
    rig.finished("18446744073709551615");
    fs::create_dir_all(rig.folder.path().join("step-50").join(MARKER)).unwrap();
    assert_eq!(rig.newest_above(0), None);
    rig.finished("b-0003");
    rig.finished("a3");
    assert_eq!(rig.newest_above(0), Some((3, "a3".to_owned())), "the first by name");
    assert!(newest_ready(&rig.folder.path().join("nowhere"), 0).is_err());
}

#[tokio::test(start_paused = true)]
async fn new_checkpoints_are_announced_and_the_directory_may_appear_later() {
    let rig = Rig::new();
    let _following = rig.follow();
    tokio::time::sleep(10 * LOOK_INTERVAL).await;
    assert_eq!(rig.state.announced(), 0);

    rig.finished("checkpoints/step-1");
    rig.finished("checkpoints/step-2");
    tokio::time::timeout(3 * LOOK_INTERVAL, rig.state.until_announced(2)).await.unwrap();
    let pending = rig.state.pending().unwrap();
    let path = rig.folder.path().join("checkpoints/step-2");
    assert_eq!((&*pending.label, pending.path.as_deref()), ("step-2", path.to_str()));

    fs::remove_dir_all(rig.folder.path().join("checkpoints")).unwrap();
    tokio::time::sleep(10 * LOOK_INTERVAL).await;
    assert_eq!(rig.state.announced(), 2);
    rig.unfinished("checkpoints/step-3");
    tokio::time::sleep(10 * LOOK_INTERVAL).await;
    assert_eq!(rig.state.announced(), 2);
    rig.finished("checkpoints/step-3");
    tokio::time::timeout(3 * LOOK_INTERVAL, rig.state.until_announced(3)).await.unwrap();
    assert!(rig.scope.close(Duration::from_secs(60)).await);
}

#[tokio::test(start_paused = true)]
async fn a_version_that_was_announced_elsewhere_is_not_announced_again() {
    let rig = Rig::new();
    rig.finished("checkpoints/step-5");
    rig.state.announce(Announcement::new(6)).unwrap();
    let _following = rig.follow();
    tokio::time::sleep(3 * LOOK_INTERVAL).await;
    assert_eq!((rig.state.announced(), rig.state.pending().unwrap().version), (6, 6));
}
