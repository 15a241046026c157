//! A process that opens, buries and forgets trajectories is killed at any moment, many times. During this time, the
//! log is rewritten again and again. It always has everything that the process has acknowledged.

use std::collections::{BTreeMap, HashSet};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rand::{RngExt, SeedableRng};
use rolldock_queue::Durability;

use super::super::Store;
use super::{entry, opened};

const ROUNDS: u64 = 10;
/// A small size, so that the log is rewritten in most rounds.
const REWRITE: u64 = 8 << 10;
/// Number of trajectories that are open at a time, and number of buried trajectories that are remembered.
const OPEN: u64 = 8;
const REMEMBERED: u64 = 16;
const FOLDER: &str = "ROLLDOCK_TEST_GATEWAY_LOG";

/// For each trajectory of a log, the texts from the last record that replaces all earlier records.
type Said = BTreeMap<u64, Vec<String>>;

fn read(dir: &Path, durability: Durability) -> (Store, Said) {
    let mut said = Said::new();
    let store = opened(|| {
        Store::open_with(dir, durability, REWRITE, |entry| {
            let texts = said.entry(entry.number).or_default();
            if entry.is_last {
                texts.clear();
            }
            texts.push(String::from_utf8(entry.body.to_vec()).unwrap());
            Ok(())
        })
    });
    (store, said)
}

/// The process that is killed. It prints the number of each step that is durable.
#[tokio::test]
#[ignore = "the process that another test kills"]
async fn works_until_it_is_killed() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    let (store, said) = read(Path::new(&folder), Durability::Os);
    let next = said.keys().next_back().map_or(0, |last| last + 1);
    said.keys().filter(|number| **number + OPEN + REMEMBERED < next).for_each(|number| store.forget(*number));
    for number in next.. {
        for turn in 0..3 {
            store.append(entry(number, false, format!("{number} turn {turn} {}", "x".repeat(60)).as_bytes()));
        }
        if let Some(ended) = number.checked_sub(OPEN) {
            store.append(entry(ended, true, format!("{ended} buried").as_bytes()));
        }
        if let Some(forgotten) = number.checked_sub(OPEN + REMEMBERED) {
            store.forget(forgotten);
        }
        let sequence = store.append(entry(number, false, format!("{number} turn 3").as_bytes()));
        store.kept(sequence).await.unwrap();
        println!("\nkept {number}");
    }
}

/// A process that is killed with SIGKILL when this is dropped.
struct Victim(Child);

impl Victim {
    fn start(folder: &Path) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args([
            "--ignored",
            "--exact",
            "--nocapture",
            "store::tests::churn::works_until_it_is_killed",
        ]);
        Self(command.env(FOLDER, folder).stdout(Stdio::piped()).spawn().unwrap())
    }

    /// Waits until the process has reported `steps` durable steps. Returns the number of the last reported step.
    fn kept(&mut self, steps: usize) -> u64 {
        let lines = BufReader::new(self.0.stdout.as_mut().unwrap()).lines();
        let kept = lines.map_while(Result::ok).filter_map(|line| line.strip_prefix("kept ")?.parse().ok());
        kept.take(steps).last().unwrap()
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[test]
fn a_kill_at_any_moment_loses_nothing_that_was_kept() {
    let folder = tempfile::tempdir().unwrap();
    let mut random = rand_chacha::ChaCha8Rng::seed_from_u64(20);
    let mut rounds_with_rewrites = HashSet::new();
    for round in 0..ROUNDS {
        let steps = random.random_range(1..400);
        let mut victim = Victim::start(folder.path());
        let last = victim.kept(steps);
        drop(victim);
        let log = folder.path().join("trajectories.log");
        let bytes = log.metadata().unwrap().len();
        // The bound is doubled, because frames are written between two chances for a rewrite.
        assert!(bytes < 2 * REWRITE.max(4 * 24 * 500), "round {round}: {bytes} bytes");
        let (store, said) = read(folder.path(), Durability::Os);
        store.close();
        if said.keys().next().is_some_and(|first| *first > 0) {
            rounds_with_rewrites.insert(round);
        }
        // The process may have made further steps after the last step that the test has read.
        let reached = *said.keys().next_back().unwrap();
        assert!(reached >= last, "round {round}: {reached} of {last}");
        for number in (reached + 2).saturating_sub(OPEN + REMEMBERED)..=last {
            let texts = said.get(&number).unwrap_or_else(|| panic!("round {round}: {number} is gone"));
            let is_buried = *texts == [format!("{number} buried")];
            let is_whole =
                texts.len() == 4 && texts.iter().all(|text| text.starts_with(&format!("{number} turn")));
            assert!(is_buried || is_whole, "round {round}: {texts:?}");
            assert!(is_buried || number + OPEN > last, "round {round}: {number} is not buried");
            assert!(is_whole || number + OPEN <= reached + 1, "round {round}: {number} is buried");
        }
    }
    assert!(rounds_with_rewrites.len() > 3, "{rounds_with_rewrites:?}");
}
