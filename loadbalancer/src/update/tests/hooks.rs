//! The user's hooks: a program or a URL. The clock is real, since the processes and sockets are.

use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::post;
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::fake::{Fixture, failures, reloading, with};
use super::*;

fn fleet(method: UpdateMethod, update: f64) -> Fixture {
    let url = |name: &str| ServerSpec::new(name, format!("http://{name}:8000"), 4);
    let balancer = LoadBalancer::new(BalancerConfig::default(), vec![url("s0"), url("s1")]).unwrap();
    let deadlines = Deadlines { update, ..Deadlines::default() };
    with(balancer, Arc::default(), UpdateConfig { method, deadlines, ..reloading() })
}

fn shell(script: &str) -> UpdateMethod {
    UpdateMethod::Command(["/bin/sh", "-c", script].map(str::to_owned).to_vec())
}

#[tokio::test]
async fn a_program_runs_once_for_all_servers_and_gets_the_announcement() {
    let folder = tempfile::tempdir().unwrap();
    let said = folder.path().join("said");
    let script = format!("echo $ROLLDOCK_VERSION $ROLLDOCK_PATH $ROLLDOCK_SERVERS >> {}", said.display());
    let fixture = fleet(shell(&script), 20.0);
    assert_eq!(fixture.update(7).await.outcome, UpdateOutcome::Complete);
    assert_eq!(std::fs::read_to_string(&said).unwrap(), "7 /v7 http://s0:8000 http://s1:8000\n");
    assert_eq!(fixture.server("s1").weights_version, Some(7));
    assert_eq!(fixture.fake.engine("s1").label, "7");
    fixture.restart("s1");
    fixture.revive("s1");
    fixture.updater.catch_up().await;
    let last = std::fs::read_to_string(&said).unwrap();
    assert!(last.ends_with("\n7 /v7 http://s1:8000\n"), "{last}");
}

#[tokio::test]
async fn the_message_of_a_failed_program_is_reported_and_no_server_gets_permits() {
    let fixture = fleet(shell("echo first; echo no such checkpoint >&2; exit 3"), 20.0);
    let report = fixture.update(7).await;
    assert_eq!(failures(&report.servers).len(), 2);
    let reason = &report.servers[0].failure.as_ref().unwrap().reason;
    assert!(reason.contains("exit status: 3: no such checkpoint"), "{reason}");
    assert!(fixture.permit().is_none());
    assert!(fixture.fake.paused().is_empty());
    let missing = fleet(UpdateMethod::Command(vec!["/nowhere/at-all".to_owned()]), 20.0);
    let report = missing.update(7).await;
    let reason = &report.servers[0].failure.as_ref().unwrap().reason;
    assert!(reason.contains("/nowhere/at-all: No such file"), "{reason}");
}

#[tokio::test]
async fn a_program_and_its_children_are_killed_at_the_deadline() {
    let folder = tempfile::tempdir().unwrap();
    let (started, survived) = (folder.path().join("started"), folder.path().join("survived"));
    let child = format!("touch {}; sleep 3; touch {}", started.display(), survived.display());
    let fixture = fleet(shell(&format!("({child}) & wait")), 1.0);
    let report = fixture.update(7).await;
    assert_eq!(report.servers[0].failure.as_ref().unwrap().reason, "no answer within 1 s");
    assert!(started.exists());
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(!survived.exists());
}

#[tokio::test]
async fn a_program_may_leave_a_process_behind_that_holds_its_pipe() {
    let fixture = fleet(shell("sleep 30 & echo $! >&2; exit 1"), 20.0);
    let began = Instant::now();
    let report = fixture.update(7).await;
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    let reason = report.servers[0].failure.as_ref().unwrap().reason.clone();
    let left_behind: i32 = reason.rsplit(' ').next().unwrap().parse().unwrap();
    let left_behind = rustix::process::Pid::from_raw(left_behind).unwrap();
    rustix::process::kill_process(left_behind, rustix::process::Signal::KILL).unwrap();
}

type Heard = Arc<Mutex<Vec<Value>>>;

async fn listener(status: StatusCode) -> (String, Heard, CancellationToken) {
    let heard = Heard::default();
    let hear = move |State(heard): State<Heard>, body: axum::Json<Value>| async move {
        heard.lock().push(body.0);
        (status, "the trainer's words")
    };
    let router = axum::Router::new().route("/push", post(hear)).with_state(Arc::clone(&heard));
    let socket = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/push", socket.local_addr().unwrap());
    let end = CancellationToken::new();
    let served = axum::serve(socket, router).with_graceful_shutdown(end.clone().cancelled_owned());
    TaskTracker::new().spawn(async move { served.await.unwrap() });
    (url, heard, end)
}

#[tokio::test]
async fn a_url_gets_the_announcement_and_the_servers() {
    let (url, heard, end) = listener(StatusCode::NO_CONTENT).await;
    let fixture = fleet(UpdateMethod::Http(url), 20.0);
    let payload = Some(json!({ "shards": 2 }));
    let announced = Announcement { payload, ..fake::announcement(7) };
    assert_eq!(fixture.updater.update(announced).await.outcome, UpdateOutcome::Complete);
    let servers = ["http://s0:8000", "http://s1:8000"];
    let expected =
        json!({ "version": 7, "label": "7", "path": "/v7", "payload": { "shards": 2 }, "servers": servers });
    assert_eq!(*heard.lock(), [expected]);
    end.cancel();
}

#[tokio::test]
async fn a_url_that_refuses_is_a_failure_with_its_message() {
    let (url, _, end) = listener(StatusCode::CONFLICT).await;
    let fixture = fleet(UpdateMethod::Http(url), 20.0);
    let report = fixture.update(7).await;
    let reason = &report.servers[1].failure.as_ref().unwrap().reason;
    assert!(reason.contains("409") && reason.contains("the trainer's words"), "{reason}");
    assert!(fixture.fake.paused().is_empty());
    end.cancel();
}
