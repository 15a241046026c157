//! Every metric that the documentation lists is on the page of its process, and changes during a run.

use std::collections::BTreeSet;
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use arrow_array::{Int64Array, RecordBatch};
use rolldock_queue::{PartitionSpec, Put, Queue, RemoteConfig, RemoteQueue, Take};
use tempfile::TempDir;

use crate::support::metrics::{Scrapes, documented, scrape};
use crate::support::{Rolldock, Running, Simengine, pause_for, recipe, wait_for};

/// Counters of rare faults, and of samples that leave slow servers or are copied. They exist and stay 0 in the run
/// below. The tests of their crates cause these faults, and the simulation tests cause such moves and copies.
const RARE: [&str; 6] = [
    "rolldock_aborts_dropped_total",
    "rolldock_engines_recovered_total",
    "rolldock_hedges_total",
    "rolldock_moved_tokens_total",
    "rolldock_moves_total",
    "rolldock_weight_update_failures_total",
];
/// The longest time until all other metrics have changed.
const MOVED_MAX: Duration = Duration::from_secs(300);
/// The maximum number of servers that die while they have requests. Servers die one after the other until
/// requests of an ended step have been sent again. A group that is cut off has no further attempts, so one
/// death may not be enough.
const VICTIMS: usize = 5;
/// The number of steps from the death of one server to the death of the next.
const STEPS_BETWEEN: usize = 6;
/// The time for which a server is stopped before it dies, so that it has requests when it dies.
const STOPPED: Duration = Duration::from_millis(400);

/// Waits for the line of the address, and returns the URL.
pub(crate) fn address(run: &Running) -> String {
    let words = "metrics at ";
    wait_for(words, || run.stdout_so_far().contains("/metrics; `rolldock why "));
    let text = run.stdout_so_far();
    let line = text.lines().find_map(|line| line.strip_prefix(words)).unwrap();
    line.split("/metrics").next().unwrap().to_owned()
}

fn names(sections: &[&str]) -> BTreeSet<String> {
    sections.iter().flat_map(|section| documented(section)).collect()
}

/// A run on servers with few permits, with an embedded trainer that announces versions, and with a
/// watchdog that reports after a short silence.
fn busy_run(out: &Path, servers: &[Simengine]) -> Running {
    let run = Rolldock::new(&["run", "--steps", "100000", "--out"]).arg(out).arg(recipe("quickstart.toml"));
    let run = servers.iter().fold(run, |run, server| run.arg("--endpoint").arg(&server.url));
    let settings = [
        "fleet.max_loads_per_server=6",
        "fleet.probe_interval=0.05",
        "rollout.train_batch_size=4",
        "rollout.gen_batch_size=8",
        "rollout.max_gen_batches=1000",
        "rollout.samples_per_prompt=4",
        "rollout.max_response_length=256",
        "validation.every_steps=1000000",
        "queue.consumer={task=\"train\",take_groups=4,keep_last_steps=0,train_s=0.05,announces=true}",
        "policy.mode=fully_async",
        "policy.update.method=command",
        "policy.update.command=[\"true\"]",
        "timeouts.silence=0.04",
        "run.on_silence=cancel_and_requeue",
        "limits.connections.head_timeout=0.2",
    ];
    settings.iter().fold(run, |run, set| run.set(set)).start()
}

#[test]
fn every_documented_metric_of_a_run_is_exported_and_changes() {
    let dir = TempDir::new().unwrap();
    let flags =
        ["--time-scale", "0.1", "--data", "data/arithmetic/train.jsonl", "--mean-response-length", "40"];
    let mut servers: Vec<Simengine> = (0..=VICTIMS).map(|_| Simengine::start(&flags)).collect();
    let run = busy_run(&dir.path().join("run"), &servers);
    let url = address(&run);
    let names = names(&["The run", "The fleet", "Weight updates", "The queue", "Connections"]);
    let mut scrapes = Scrapes::default();
    let (mut next_death, mut idle) = (3, Vec::new());
    for look in 0..MOVED_MAX.as_millis() / 20 {
        let (status, page) = scrape(&url, None);
        assert_eq!(status, 200, "{page}");
        scrapes.note(&page);
        if look == 0 {
            // These are more connections than the address accepts, and nothing is sent on them.
            let address = url.trim_start_matches("http://");
            idle.extend((0..20).map(|_| TcpStream::connect(address).unwrap()));
        }
        let unmoved = scrapes.unmoved(&names);
        let is_retried = servers.len() <= VICTIMS && !unmoved.contains(&&"rolldock_retries_total".to_owned());
        let steps = run.stdout_so_far().matches("target reached").count();
        if !is_retried && servers.len() > 1 && steps >= next_death {
            servers.last().unwrap().stop();
            pause_for(STOPPED);
            // The server dies with all of its requests.
            servers.pop();
            next_death = steps + STEPS_BETWEEN;
        }
        if unmoved.iter().all(|name| RARE.contains(&name.as_str())) {
            break;
        }
        pause_for(Duration::from_millis(20));
    }
    let absent = scrapes.absent(&names);
    assert!(absent.is_empty(), "not on the page: {absent:?}");
    let unmoved: Vec<&String> =
        scrapes.unmoved(&names).into_iter().filter(|name| !RARE.contains(&name.as_str())).collect();
    assert!(unmoved.is_empty(), "always 0: {unmoved:?}\n{}\n{}", run.stdout_so_far(), run.stderr_so_far());
}

#[test]
fn every_documented_metric_of_a_served_queue_is_exported_and_changes() {
    let dir = TempDir::new().unwrap();
    let server = Rolldock::new(&["queue", "serve", "--listen", "127.0.0.1:0", "--token", "secret"]);
    let server = server.arg("--unauthenticated-max").arg("2").arg("--dir").arg(dir.path()).start();
    let words = "serving a queue at ";
    wait_for(words, || server.stdout_so_far().contains(words));
    let text = server.stdout_so_far();
    let url = text.split(words).nth(1).unwrap().split(',').next().unwrap().to_owned();
    assert_eq!(scrape(&url, None).0, 401, "partitions have names that only clients may see");
    assert_eq!(scrape(&url, Some("wrong")).0, 401);

    let names = names(&["The queue", "Connections"]);
    let mut scrapes = Scrapes::default();
    let mut look = || {
        let (status, page) = scrape(&url, Some("secret"));
        assert_eq!(status, 200, "{page}");
        scrapes.note(&page);
        page
    };
    let empty = look();
    assert!(empty.contains("rolldock_queue_payload_bytes 0"), "{empty}");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let page = runtime.block_on(async {
        let config = RemoteConfig { token: Some("secret".to_owned()), ..RemoteConfig::new(&url) };
        let queue = RemoteQueue::new(config).unwrap();
        queue.declare(PartitionSpec::new("train", ["actor", "critic"], 100)).await.unwrap();
        for first in [0, 4] {
            let ids: Arc<Int64Array> = Arc::new(Int64Array::from_iter_values(first..first + 4));
            let rows = RecordBatch::try_from_iter([("id", ids as _)]).unwrap();
            let put = Put { policy_version: 7, ..Put::group(format!("g{first}"), rows) };
            queue.put("train", put, None).await.unwrap();
        }
        for task in ["actor", "critic"] {
            queue.take("train", &Take::groups(task, 1)).await.unwrap().unwrap().ack().await.unwrap();
        }
        let lease = queue.take("train", &Take::groups("actor", 1)).await.unwrap().unwrap();
        tokio::time::sleep(Duration::from_millis(20)).await;
        let page = look();
        drop(lease);
        page
    });
    for line in [
        "rolldock_queue_rows{partition=\"train\"} 4",
        "rolldock_queue_capacity_rows{partition=\"train\"} 100",
        "rolldock_queue_leases{partition=\"train\"} 1",
        "rolldock_queue_policy_version{partition=\"train\"} 7",
        "rolldock_queue_task_lag_rows{partition=\"train\",task=\"critic\"} 4",
        "rolldock_queue_task_rows{partition=\"train\",task=\"actor\",state=\"leased\"} 4",
        "rolldock_queue_task_rows{partition=\"train\",task=\"critic\",state=\"ready\"} 4",
        "rolldock_queue_gone_rows_total{partition=\"train\",fate=\"acked\"} 4",
    ] {
        assert!(page.lines().any(|found| found == line), "{line} is not in\n{page}");
    }
    let idle: Vec<TcpStream> =
        (0..6).map(|_| TcpStream::connect(url.trim_start_matches("http://")).unwrap()).collect();
    let is_shed = |line: &str| line.contains("reason=\"unauthenticated\"") && !line.ends_with(" 0");
    wait_for("a connection that makes room", || look().lines().any(is_shed));
    drop(idle);
    assert!(scrapes.absent(&names).is_empty(), "not on the page: {:?}", scrapes.absent(&names));
    let unmoved = scrapes.unmoved(&names);
    assert_eq!(unmoved, ["rolldock_connection_timeouts_total"], "the time-outs are longer than this test");
}

#[test]
fn every_documented_metric_of_a_proxy_is_exported() {
    let engine = Simengine::start(&["--time-scale", "0.01"]);
    let proxy = Rolldock::new(&["proxy", "--listen", "127.0.0.1:0", "--endpoint"]).arg(&engine.url).start();
    wait_for("the proxy", || proxy.stdout_so_far().contains(" balances "));
    let url = proxy.stdout_so_far().split(' ').next().unwrap().to_owned();
    let mut scrapes = Scrapes::default();
    scrapes.note(&scrape(&url, None).1);
    let names = names(&["The proxy", "The fleet", "Connections"]);
    assert!(scrapes.absent(&names).is_empty(), "not on the page: {:?}", scrapes.absent(&names));
}

#[test]
fn a_run_whose_address_is_in_use_continues_without_it() {
    let dir = TempDir::new().unwrap();
    let holder = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = holder.local_addr().unwrap();
    for (number, (listen, warns)) in
        [(taken.to_string(), true), ("off".to_owned(), false)].into_iter().enumerate()
    {
        let out = dir.path().join(number.to_string());
        let run = Rolldock::new(&["run", "--steps", "1", "--out"]).arg(&out).arg(recipe("quickstart.toml"));
        let settings = [
            "fleet.simulated.time_scale=0.002",
            "rollout.train_batch_size=2",
            "rollout.samples_per_prompt=4",
            "queue.consumer.keep_last_steps=0",
        ];
        let run = settings.iter().fold(run, |run, set| run.set(set)).set(&format!("report.listen={listen}"));
        let ended = run.succeeds();
        let warning = format!("the run has neither metrics nor a status (report.listen={taken}): ");
        assert_eq!(ended.stderr.contains(&warning), warns, "{}", ended.stderr);
        assert!(ended.stdout.contains("done: 1 step; 2 groups accepted"), "{}", ended.stdout);
        assert!(!ended.stdout.contains("metrics at ") && !out.join("address.json").exists());
    }
}
