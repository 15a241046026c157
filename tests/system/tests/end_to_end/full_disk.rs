//! Runs and commands on a full disk. The disk is a small tmpfs. If the system does not allow such a mount, the tests
//! print a note and are skipped.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use rolldock_ledger::LedgerState;
use tempfile::TempDir;

use crate::metrics::address;
use crate::support::{Rolldock, Running, root, small_run, wait_for};

fn skip() {
    eprintln!("skipped: this user may not mount a small file system");
}

#[test]
fn a_full_disk_is_an_error_that_leaves_a_queue_to_read() {
    let dir = TempDir::new().unwrap();
    let out = dir.path().join("disk/run");
    let Some(run) =
        small_run(&out, "50").set("queue.consumer.keep_last_steps=0").on_small_disk(&dir.path().join("disk"))
    else {
        skip();
        return;
    };
    assert_eq!(run.code, Some(1), "{} {}", run.stdout, run.stderr);
    assert!(run.stderr.contains("No space left on device"), "{}", run.stderr);
    assert!(!run.stderr.contains("panicked"), "{}", run.stderr);
}

/// Fills a disk, as another program may do. Returns the file that does it.
fn fill(disk: &Path) -> PathBuf {
    let file = disk.join("another");
    let mut filling = OpenOptions::new().create(true).append(true).open(&file).unwrap();
    for piece in [1 << 12, 1] {
        while filling.write_all(&vec![0; piece]).is_ok() {}
    }
    file
}

/// The ledger of the run is on the small disk. Its queue is not, and accepts puts.
#[test]
fn a_run_waits_until_the_disk_of_its_ledger_has_room() {
    let dir = TempDir::new().unwrap();
    let (disk, queue) = (dir.path().join("disk"), dir.path().join("queue"));
    let out = disk.join("run");
    let run = small_run(&out, "100000").set("rollout.on_stop=carry").set("report.timelines=0");
    let layout = format!(
        "mkdir \"$0/run\" && touch \"$0/run/ledger.log\" && mkdir '{0}' && ln -s '{0}' \"$0/run/queue\"",
        queue.display()
    );
    let Some(run) = run.set("queue.consumer.keep_last_steps=0").start_on_small_disk(&disk, &layout) else {
        skip();
        return;
    };
    let root = PathBuf::from(format!("/proc/{}/root", run.id()));
    let inside = |path: &Path| root.join(path.strip_prefix("/").unwrap());
    let accepted = || LedgerState::read(&inside(&out)).map_or(0, |(state, _)| state.totals().accepted);
    let waits =
        |run: &Running| run.stderr_so_far().matches("the ledger waits until its disk has room").count();
    wait_for("accepted groups", || accepted() > 0);
    let filling = fill(&inside(&disk));
    wait_for("full disk", || waits(&run) > 0);
    let (before, waited) = (accepted(), waits(&run));
    fs::remove_file(filling).unwrap();
    wait_for("more accepted groups", || accepted() > before + 8);

    // The run does not wait for room after an interrupt.
    fill(&inside(&disk));
    wait_for("full disk", || waits(&run) > waited);
    run.interrupt();
    let ended = run.wait();
    assert!(ended.stderr.contains("is full (write failed: No space left on device"), "{}", ended.stderr);
    assert_eq!(ended.code, Some(1), "{}", ended.stderr);
}

/// A run whose kept tokens fill a disk about as fast as its rows do.
const LARGE: &str = r#"
[model]
name = "simulated"
tokenizer = "builtin"
[data]
train = "ROOT/data/arithmetic/train.jsonl"
[fleet.simulated]
servers = 4
time_scale = 0.02
max_num_seqs = 64
mean_response_length = 200
[rollout]
workers = 4
max_concurrent_prompts = 8
samples_per_prompt = 8
train_batch_size = 16
gen_batch_size = 32
max_gen_batches = 8
max_response_length = 1024
[reward]
scorer = "math_dapo"
[queue]
capacity_rows = 65536
durability = "os"
listen = "127.0.0.1:0"
[policy]
mode = "off"
[run]
steps = 100000
"#;

/// The ledger and the queue of the run are on the small disk. The run puts no group while its ledger waits.
#[test]
fn consuming_the_rows_of_a_run_gives_its_ledger_room_and_why_names_the_full_disk() {
    let dir = TempDir::new().unwrap();
    let (disk, recipe) = (dir.path().join("disk"), dir.path().join("large.toml"));
    fs::write(&recipe, LARGE.replace("ROOT", root().to_str().unwrap())).unwrap();
    let run = Rolldock::new(&["run", "--out"]).arg(disk.join("run")).arg(&recipe);
    let Some(run) = run.start_on_small_disk(&disk, "mount -o remount,size=9m \"$0\"") else {
        skip();
        return;
    };
    let (queue, status) = (run.url_after("serving the queue at "), address(&run));
    let says = |words: &str| run.stderr_so_far().contains(words);
    let (waits, room) = ("the ledger waits until its disk has room", "the disk of the ledger has room again");
    wait_for("full disk", || says(waits) || says("a group waits until it can be put"));
    if !says(waits) {
        eprintln!("skipped: a put has met the full disk before the ledger, and frees space by itself");
        run.kill();
        return;
    }
    let said = Rolldock::new(&["why"]).arg(&status).succeeds().stdout;
    for words in ["The ledger waits until its disk has room: the disk of file=", " is full (write failed: "] {
        assert!(said.contains(words), "{words:?} is not in\n{said}");
    }
    assert!(!said.contains("room for its rows"), "{said}");
    let consuming = Rolldock::new(&["consume", "--groups", "8", "--wait", "10"]).arg(&queue).start();
    wait_for("room", || says(room));
    consuming.kill();
    run.kill();
}

#[test]
fn a_report_that_cannot_be_written_leaves_the_earlier_report() {
    let dir = TempDir::new().unwrap();
    let out = dir.path().join("run");
    small_run(&out, "1").succeeds();
    Rolldock::new(&["report"]).arg(&out).succeeds();
    let files = || {
        let names = fs::read_dir(&out).unwrap().map(|entry| entry.unwrap().file_name());
        names.collect::<std::collections::BTreeSet<_>>()
    };
    let (page, before) = (fs::read(out.join("report.html")).unwrap(), files());
    let failed = Rolldock::with_short_files(&["report"]).arg(&out).fails(1).stderr;
    assert!(failed.contains("report.html: File too large"), "{failed}");
    assert_eq!(fs::read(out.join("report.html")).unwrap(), page);
    assert_eq!(files(), before, "no part of it stays");
    Rolldock::new(&["report", "--output", "/dev/null"]).arg(&out).succeeds();
}
