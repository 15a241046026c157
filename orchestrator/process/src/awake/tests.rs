use super::*;

/// Whether a thread stays awake after an event that ended a sleep of the length `slept`.
async fn is_awake_after(slept: Duration, is_core_spare: bool) -> bool {
    let awake = Awake::default();
    awake.before_sleep();
    tokio::time::advance(slept).await;
    awake.after_sleep(|| is_core_spare);
    !awake.is_over()
}

#[tokio::test(start_paused = true)]
async fn close_events_keep_a_thread_awake_and_others_do_not() {
    assert!(is_awake_after(WINDOW / 5, true).await);
    assert!(!is_awake_after(WINDOW * 2, true).await);
}

#[tokio::test(start_paused = true)]
async fn a_thread_sleeps_between_events_if_no_core_is_spare() {
    assert!(!is_awake_after(WINDOW / 5, false).await);
}

#[test]
fn a_core_is_spare_if_fewer_threads_run_than_there_are_cores() {
    assert_eq!(running(b"1.50 0.80 0.40 12/345 6789\n"), Some(12));
    assert_eq!(running(b""), None);
    assert_eq!(running(b"1.50 0.80 0.40 many"), None);
    let load = File::open("/proc/loadavg").ok();
    let is_linux = load.is_some();
    let cores = |count| Cores { count, load: load.as_ref().map(|load| load.try_clone().unwrap()) };
    assert_eq!(cores(usize::MAX).is_one_spare(), is_linux);
    // This thread runs.
    assert!(!cores(1).is_one_spare());
    assert!(!Cores { count: usize::MAX, load: None }.is_one_spare());
}

#[tokio::test(start_paused = true)]
async fn a_thread_sleeps_again_when_no_event_follows() {
    let awake = Awake::default();
    awake.before_sleep();
    awake.after_sleep(|| true);
    assert!(!awake.is_over());
    awake.before_sleep();
    assert_eq!(awake.times.lock().asleep_since, None, "a thread that stays awake counts as asleep");
    tokio::time::advance(WINDOW).await;
    assert!(awake.is_over());
    awake.before_sleep();
    assert!(awake.times.lock().asleep_since.is_some());
}

#[tokio::test(start_paused = true)]
async fn a_thread_whose_core_has_other_work_sleeps_at_once() {
    let awake = Awake::default();
    awake.before_sleep();
    awake.after_sleep(|| true);
    awake.after_yield(TURN / 2);
    assert!(!awake.is_over(), "the core was free");
    awake.after_yield(TURN);
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
