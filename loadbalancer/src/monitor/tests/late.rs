//! Delays of this process do not count against a server.

use super::*;

/// A healthy server on its own thread. The server answers even while the thread of the test is late.
fn healthy_on_another_thread() -> String {
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            tell.send(format!("http://{}", listener.local_addr().unwrap())).unwrap();
            let router = axum::Router::new().route("/health", axum::routing::get(|| async { "" }));
            axum::serve(listener, router).await.unwrap();
        });
    });
    told.recv().unwrap()
}

#[tokio::test]
async fn a_probe_that_this_process_delayed_counts_against_no_server() {
    let deadline = Duration::from_secs(1);
    let specs = vec![ServerSpec::new("a", healthy_on_another_thread(), 2)];
    let balancer = LoadBalancer::new(BalancerConfig::default(), specs).unwrap();
    let control = Arc::new(VllmControl::new(deadline, None).unwrap());
    let mut monitor = Monitor::new(balancer.clone(), control, MonitorConfig::default());
    for _ in 0..HEALTH_FAILURES_MAX {
        // The only thread of this runtime does nothing until the deadline of the call is over.
        let late = async {
            #[expect(clippy::disallowed_methods, reason = "it is this thread that has to be late")]
            std::thread::sleep(deadline * 3 / 2);
        };
        tokio::join!(monitor.look(), late);
    }
    assert_eq!(balancer.snapshot().servers[0].state, ServerState::Active);
}

#[tokio::test(start_paused = true)]
async fn a_stall_does_not_count_the_time_for_which_this_process_was_late() {
    let (balancer, _control, monitor) = watched();
    let owed = permit(&balancer).await;
    let end = CancellationToken::new();
    let testing = async {
        tokio::time::sleep(Duration::from_secs(3)).await;
        tokio::time::advance(Duration::from_secs(60)).await;
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert!(owed.revoked().now_or_never().is_none(), "it was seen standing still for 8 seconds");
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert!(owed.revoked().now_or_never().is_some());
        end.cancel();
    };
    tokio::join!(monitor.run(end.clone()), testing);
}
