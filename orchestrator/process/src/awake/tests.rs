use super::*;

/// Whether a thread stays awake after an event that ended a sleep of the length `slept`.
async fn is_awake_after(slept: Duration) -> bool {
    let awake = Awake::default();
    awake.before_sleep();
    tokio::time::advance(slept).await;
    awake.after_sleep();
    !awake.is_over()
}

#[tokio::test(start_paused = true)]
async fn events_that_follow_closely_keep_it_awake_and_others_do_not() {
    assert!(is_awake_after(WINDOW / 5).await);
    assert!(!is_awake_after(WINDOW * 2).await);
}

#[tokio::test(start_paused = true)]
async fn it_sleeps_again_when_nothing_more_comes() {
    let awake = Awake::default();
    awake.before_sleep();
    awake.after_sleep();
    assert!(!awake.is_over());
    awake.before_sleep();
    assert_eq!(awake.times.lock().asleep_since, None, "it did not sleep");
    tokio::time::advance(WINDOW).await;
    assert!(awake.is_over());
    awake.before_sleep();
    assert!(awake.times.lock().asleep_since.is_some());
}

#[test]
fn a_runtime_that_has_nothing_to_do_uses_no_processor() {
    let cpu = || {
        let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
        let after_name = stat.rsplit(')').next().unwrap().to_owned();
        let ticks: Vec<u64> =
            after_name.split_whitespace().skip(11).take(2).map(|n| n.parse().unwrap()).collect();
        ticks[0] + ticks[1]
    };
    let runtime = runtime().unwrap();
    runtime.block_on(async {
        // Events follow each other closely, and then there are none.
        for _ in 0..20 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let before = cpu();
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert!(cpu() - before <= 5, "50 ms of 500");
    });
}
