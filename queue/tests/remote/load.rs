//! Measures how the calls of operators delay small takes: `cargo test --release -p rolldock-queue --test
//! remote operators -- --ignored --nocapture`.

use std::time::Duration;

use rolldock_queue::{ExportFormat, Put, Queue, ServiceConfig, Take};
use tokio::time::Instant;

use super::support::tour::batch;
use super::{Served, served};

const ROWS: i64 = 400_000;
const GROUP: i64 = 8;
/// The maximum increase of the 99.9th percentile of the times of small takes during an operator's call.
const DELAY_MAX: Duration = Duration::from_millis(20);

/// The 99.9th percentile of the times of small takes. The takes continue until `work` is done, and for at
/// least three seconds.
async fn most_takes(served: &Served, work: impl Future<Output = ()>) -> Duration {
    let client = served.client();
    let take = Take::rows("train", 1);
    let taking = async |is_over: &std::cell::Cell<bool>| {
        let (mut times, begun) = (Vec::new(), Instant::now());
        while !is_over.get() || begun.elapsed() < Duration::from_secs(3) {
            let started = Instant::now();
            let lease = client.take("train", &take).await.unwrap().unwrap();
            times.push(started.elapsed());
            lease.nack().await.unwrap();
        }
        times
    };
    let is_over = std::cell::Cell::new(false);
    let working = async {
        work.await;
        is_over.set(true);
    };
    let ((), mut times) = tokio::join!(working, taking(&is_over));
    times.sort_unstable();
    times[times.len() * 999 / 1000]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement of some minutes"]
async fn operators_delay_no_small_take() {
    let served = served(ServiceConfig::default()).await;
    let partition =
        served.queue.declare(rolldock_queue::PartitionSpec::new("train", ["train"], 500_000)).await.unwrap();
    for group in 0..ROWS / GROUP {
        partition.put(Put::group(group.to_string(), batch(group * GROUP, GROUP)), None).await.unwrap();
    }
    let operator = served.client();
    let alone = most_takes(&served, async {}).await;
    let inspect = most_takes(&served, async {
        for _ in 0..100 {
            operator.inspect().await.unwrap();
        }
    });
    let inspect = inspect.await;
    let verify = most_takes(&served, async {
        assert!(operator.verify().await.unwrap().is_sound());
    });
    let verify = verify.await;
    let mut worst = alone.max(inspect).max(verify);
    println!("p99.9 of a small take: alone {alone:?}, inspect {inspect:?}, verify {verify:?}");
    for format in [ExportFormat::Parquet, ExportFormat::Arrow, ExportFormat::Jsonl] {
        let during = most_takes(&served, async {
            operator.export("train", format, std::io::sink()).await.unwrap();
        });
        let during = during.await;
        println!("p99.9 of a small take: {format:?} {during:?}");
        worst = worst.max(during);
    }
    assert!(worst < alone + DELAY_MAX, "worst={worst:?}, alone={alone:?}");
}
