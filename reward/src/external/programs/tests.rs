use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::time::sleep;

use super::*;

/// Longest time that a test waits for an event.
const PATIENCE: Duration = Duration::from_secs(60);

static NEXT: AtomicU64 = AtomicU64::new(0);

fn shell(script: &str) -> Program {
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let value = format!("{}-{number}", std::process::id());
    Program {
        what: "test program".to_owned(),
        words: ["sh", "-c", script].map(str::to_owned).to_vec(),
        directory: None,
        env: BTreeMap::from([("ROLLDOCK_PROGRAM_TEST".to_owned(), value.clone())]),
        mark: format!("ROLLDOCK_PROGRAM_TEST={value}"),
        input: b"the job\n".to_vec(),
        memory_bytes: None,
        sandbox: None,
        deadline: Instant::now() + PATIENCE,
    }
}

fn programs(places: usize) -> Programs {
    Programs::new(places, TaskTracker::new())
}

async fn run(programs: &Programs, program: Program) -> Result<Ran, RewardError> {
    programs.run(programs.place().await.unwrap(), program).await
}

/// Whether a process runs. A zombie, which has ended but was not waited for, does not run.
fn lives(process: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.trim())).unwrap_or_default();
    let state = stat.rsplit_once(") ").map(|(_, rest)| rest.chars().next());
    matches!(state, Some(Some(state)) if !matches!(state, 'Z' | 'X'))
}

async fn until(what: &str, mut look: impl FnMut() -> bool) {
    let looking = async {
        while !look() {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, looking).await.unwrap_or_else(|_| panic!("never: {what}"));
}

#[tokio::test]
async fn a_program_reads_its_job_and_its_end_is_reported() {
    let programs = programs(2);
    let ran = run(&programs, shell("read -r line; echo \"got $line\"; echo oops >&2")).await.unwrap();
    assert_eq!(ran.end, ProgramEnd::Exited);
    assert!(ran.output.contains("got the job") && ran.output.contains("oops"), "{ran:?}");
    let ran = run(&programs, shell("echo no >&2; exit 3")).await.unwrap();
    assert_eq!((ran.end, ran.output.trim()), (ProgramEnd::Failed("exit status: 3".to_owned()), "no"));
    let ran = run(&programs, shell("kill -9 $$")).await.unwrap();
    assert!(matches!(&ran.end, ProgramEnd::Failed(how) if how.contains("signal: 9")), "{ran:?}");
    assert_eq!(programs.free_places(), 2);
}

#[tokio::test]
async fn the_end_of_much_output_is_kept() {
    let script = "head -c 3000000 /dev/zero | tr '\\0' x; echo last";
    let ran = run(&programs(1), shell(script)).await.unwrap();
    assert_eq!(ran.end, ProgramEnd::Exited);
    assert!(ran.output.len() <= OUTPUT_BYTES_MAX && ran.output.ends_with("xlast\n"), "{}", ran.output.len());
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn processes_that_a_program_leaves_behind_end_with_it() {
    // One child stays in the group, the other one leaves it.
    let script = "sleep 1000 & echo $!; setsid sleep 1000 & sleep 0.1; echo $!";
    let ran = run(&programs(1), shell(script)).await.unwrap();
    let children: Vec<&str> = ran.output.lines().collect();
    assert_eq!((ran.end.clone(), children.len()), (ProgramEnd::Exited, 2), "{ran:?}");
    // A process that was killed needs a moment to end.
    until("both children end", || children.iter().all(|child| !lives(child))).await;
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn the_deadline_and_a_drop_kill_a_program_with_its_children() {
    for is_dropped in [false, true] {
        let programs = programs(1);
        let folder = tempfile::tempdir().unwrap();
        let noted = folder.path().join("children");
        let script = format!(
            "trap '' TERM; (setsid sleep 1000 & echo $! >>{0}.new); (sleep 1000 & echo $! >>{0}.new); \
             echo $$ >>{0}.new; mv {0}.new {0}; while :; do sleep 1; done",
            noted.display()
        );
        let mut program = shell(&script);
        if !is_dropped {
            program.deadline = Instant::now() + Duration::from_secs(2);
        }
        let running = run(&programs, program);
        if is_dropped {
            tokio::select! {
                ran = running => panic!("it ended: {ran:?}"),
                () = until("its children", || noted.exists()) => {}
            }
        } else {
            assert_eq!(running.await.unwrap().end, ProgramEnd::TimedOut);
        }
        let processes = std::fs::read_to_string(&noted).unwrap();
        assert_eq!(processes.lines().count(), 3);
        until("all processes end", || processes.lines().all(|process| !lives(process))).await;
        until("the place is free", || programs.free_places() == 1).await;
    }
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn processes_of_an_earlier_life_are_found_by_their_mark() {
    let mark = format!("ROLLDOCK_PROGRAM_TEST_RUN={}", std::process::id());
    let (name, value) = mark.split_once('=').unwrap();
    let mut left = Command::new("sleep").arg("1000").env(name, value).spawn().unwrap();
    assert!(end_marked(&mark, &TaskTracker::new()).await);
    let status = timeout(PATIENCE, left.wait()).await.unwrap().unwrap();
    assert!(!status.success());
}

#[tokio::test]
async fn programs_wait_for_places() {
    let programs = programs(1);
    let place = programs.place().await.unwrap();
    let mut waiting = std::pin::pin!(programs.place());
    assert!(futures::poll!(&mut waiting).is_pending());
    programs.run(place, shell("true")).await.unwrap();
    timeout(PATIENCE, waiting).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_missing_program_is_an_error_that_names_it() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("plain"), "").unwrap();
    let error = find_program("./plain", Some(folder.path())).unwrap_err();
    assert!(error.contains("plain"), "{error}");
    std::fs::set_permissions(folder.path().join("plain"), std::fs::Permissions::from_mode(0o755)).unwrap();
    find_program("./plain", Some(folder.path())).unwrap();
    find_program("sh", None).unwrap();
    let error = find_program("rolldock-has-no-such-program", None).unwrap_err();
    assert!(error.contains("\"rolldock-has-no-such-program\" in PATH"), "{error}");
    let mut program = shell("true");
    program.directory = Some(folder.path().join("absent"));
    assert!(matches!(run(&programs(1), program).await, Err(RewardError::Unloadable { .. })));
}
