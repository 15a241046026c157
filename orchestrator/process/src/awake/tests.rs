use std::io::Write;

use super::*;

/// Whether a thread stays awake after an event that ended a sleep of the length `slept`.
async fn is_awake_after(slept: Duration, are_cores_busy: bool) -> bool {
    let awake = Awake::default();
    awake.before_sleep();
    tokio::time::advance(slept).await;
    awake.after_sleep(|| are_cores_busy);
    !awake.is_over()
}

#[tokio::test(start_paused = true)]
async fn close_events_keep_a_thread_awake_and_others_do_not() {
    assert!(is_awake_after(WINDOW / 5, false).await);
    assert!(!is_awake_after(WINDOW * 2, false).await);
}

#[tokio::test(start_paused = true)]
async fn a_thread_sleeps_between_events_if_the_cores_are_busy() {
    assert!(!is_awake_after(WINDOW / 5, true).await);
}

#[test]
fn cores_are_busy_if_more_threads_run_than_two_per_core() {
    assert_eq!(running(b"1.50 0.80 0.40 12/345 6789\n"), Some(12));
    assert_eq!(running(b""), None);
    assert_eq!(running(b"1.50 0.80 0.40 many"), None);
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(b"1.50 0.80 0.40 4/345 6789\n").unwrap();
    let cores = |count| Cores { count, load: Some(file.try_clone().unwrap()) };
    assert!(!cores(2).are_busy());
    assert!(cores(1).are_busy());
    assert!(Cores { count: usize::MAX, load: None }.are_busy(), "the number of threads is not known");
    assert!(Cores { count: 0, ..Cores::new() }.are_busy(), "this thread runs");
}

#[tokio::test(start_paused = true)]
async fn a_thread_sleeps_again_when_no_event_follows() {
    let awake = Awake::default();
    awake.before_sleep();
    awake.after_sleep(|| false);
    assert!(!awake.is_over());
    awake.before_sleep();
    assert_eq!(awake.times.lock().asleep_since, None, "a thread that stays awake counts as asleep");
    tokio::time::advance(WINDOW).await;
    assert!(awake.is_over());
    awake.before_sleep();
    assert!(awake.times.lock().asleep_since.is_some());
}

#[tokio::test(start_paused = true)]
async fn a_thread_whose_core_has_other_work_sleeps_at_once_if_the_cores_are_busy() {
    let awake = Awake::default();
    awake.before_sleep();
    awake.after_sleep(|| false);
    awake.after_yield(TURN / 2, || true);
    assert!(!awake.is_over(), "the core was free");
    awake.after_yield(TURN, || false);
    assert!(!awake.is_over(), "another core is free");
    awake.after_yield(TURN, || true);
    assert!(awake.is_over());
    awake.before_sleep();
    assert!(awake.times.lock().asleep_since.is_some());
}

#[test]
fn an_idle_runtime_uses_less_than_a_tenth_of_a_core() {
    let cpu_ticks = || {
        let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
        let after_name = stat.rsplit(')').next().unwrap().to_owned();
        let ticks: Vec<u64> =
            after_name.split_whitespace().skip(11).take(2).map(|n| n.parse().unwrap()).collect();
        ticks[0] + ticks[1]
    };
    let runtime = runtime().unwrap();
    runtime.block_on(async {
        // First there are close events, and then no event.
        for _ in 0..20 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let before = cpu_ticks();
        tokio::time::sleep(Duration::from_millis(500)).await;
        let used_ms = (cpu_ticks() - before) * 10;
        assert!(used_ms <= 50, "the idle runtime used the core for {used_ms} ms of 500 ms");
    });
}
