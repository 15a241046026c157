//! The recorder of metrics. It keeps them in this process's memory and renders them on request.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use parking_lot::Mutex;
use rolldock_listener::RenderMetrics;
use rolldock_loadbalancer::LoadBalancer;
use rolldock_queue::TransferQueue;
use rolldock_scope::Scope;

/// Upper bounds of the buckets for times, in seconds.
const SECONDS: [f64; 14] =
    [0.005, 0.02, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 900.0, 3600.0];
/// Upper bounds of the buckets for a request's tokens per second.
const TOKENS_PER_SECOND: [f64; 10] = [1.0, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 1000.0, 10_000.0];

/// How often measured times are sorted into their buckets. Before that, times are kept one by one. Without
/// regular sorting, memory would grow for as long as no metrics are requested. Each sorting costs time for each
/// server of the fleet, also if nothing was measured.
const UPKEEP_INTERVAL: Duration = Duration::from_secs(1);

/// The handle of this process's recorder, once it is installed. A process can have only one recorder.
static KEPT: Mutex<Option<PrometheusHandle>> = Mutex::new(None);

/// `metrics` without the series of servers that have left the fleet.
pub fn of_members(metrics: RenderMetrics, balancer: LoadBalancer) -> RenderMetrics {
    let RenderMetrics(render) = metrics;
    RenderMetrics(Arc::new(move || balancer.series_of_members(&render())))
}

/// Renders the metrics of `process`, if given, and then the metrics of `queue` at the time of the request.
pub fn of_queue(process: Option<RenderMetrics>, queue: TransferQueue) -> RenderMetrics {
    RenderMetrics(Arc::new(move || {
        let of_process = process.as_ref().map(|RenderMetrics(render)| render()).unwrap_or_default();
        of_process + &page(|| queue.meter())
    }))
}

/// Renders only the metrics that `set` sets. They go into a temporary recorder, so series that no longer
/// exist are not shown at the next request.
pub fn page(set: impl FnOnce()) -> String {
    let recorder = PrometheusBuilder::new().build_recorder();
    metrics::with_local_recorder(&recorder, set);
    recorder.handle().render()
}

/// Records this process's metrics from now on, and returns a function that renders them. Metrics whose
/// handles were created before the first call stay empty. Until the scope ends, a task sorts measured times
/// into their buckets.
///
/// # Errors
/// Returns an error if other code of this process has installed a recorder.
pub fn keep_metrics(scope: &Scope) -> anyhow::Result<RenderMetrics> {
    let handle = {
        let mut kept = KEPT.lock();
        let handle = kept.clone().map_or_else(install, Ok)?;
        *kept = Some(handle.clone());
        handle
    };
    let (kept, end) = (handle.clone(), scope.token().clone());
    scope.spawn_detached("metrics upkeep", async move {
        while end.run_until_cancelled(tokio::time::sleep(UPKEEP_INTERVAL)).await.is_some() {
            kept.run_upkeep();
        }
    });
    Ok(RenderMetrics(Arc::new(move || handle.render())))
}

fn install() -> anyhow::Result<PrometheusHandle> {
    PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &SECONDS)?
        .set_buckets_for_metric(Matcher::Suffix("_tokens_per_second".to_owned()), &TOKENS_PER_SECOND)?
        .install_recorder()
        .context("another recorder of this process keeps the metrics")
}
