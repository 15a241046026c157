//! A gateway inside of a run: what a run takes out, and what an agent can do after an abort.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use reqwest::{Client, Response};
use rolldock_loadbalancer::{
    BalancerConfig, ControlError, EngineControl, EngineLoad, LoadBalancer, Monitor, MonitorConfig, Priority,
    ServerRef, ServerSpec,
};
use rolldock_scope::Scope;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::time::Instant;

use super::engine::{Engine, Letters, says};
use super::rig::{read, said, user};
use crate::{CallMeter, End, Entropy, GatewayConfig, Hosted, Limits, Opening, Sampling, Session};

/// Longest time that a test waits for an event.
const PATIENCE: Duration = Duration::from_secs(120);

pub(super) struct Run {
    /// Keeps the engines and the gateway running.
    _scope: Scope,
    /// The engine of the first server.
    pub(super) engine: Engine,
    /// The engines of the other servers.
    pub(super) others: Vec<Engine>,
    balancer: LoadBalancer,
    hosted: Hosted,
    client: Client,
    counts: Arc<Counts>,
}

/// Counts what the gateway reports to the run about calls.
#[derive(Debug, Default)]
struct Counts {
    permitted: AtomicU64,
    drew: AtomicU64,
    gave_up: AtomicU64,
    /// The time of requests without an answer in which their engine is known to have drawn nothing.
    still: Mutex<Duration>,
    version: AtomicU64,
}

impl CallMeter for Counts {
    fn priority(&self) -> Priority {
        Priority::New
    }

    fn policy_version(&self) -> u64 {
        self.version.load(Ordering::Relaxed)
    }

    fn salts_versions(&self) -> bool {
        true
    }

    fn permitted(&self, _waited: Duration) {
        self.permitted.fetch_add(1, Ordering::Relaxed);
    }

    fn drew(&self, tokens: u64, _time: Duration) {
        self.drew.fetch_add(tokens, Ordering::Relaxed);
    }

    fn gave_up(&self, after: Duration, generating: Duration) {
        self.gave_up.fetch_add(1, Ordering::Relaxed);
        *self.still.lock() += after - generating;
    }
}

impl Counts {
    fn all(&self) -> [u64; 3] {
        [&self.permitted, &self.drew, &self.gave_up].map(|count| count.load(Ordering::Relaxed))
    }
}

impl Run {
    async fn new(change: impl FnOnce(&mut GatewayConfig)) -> Self {
        Self::over(change, &[64]).await
    }

    /// A run over servers with these numbers of permits.
    pub(super) async fn over(change: impl FnOnce(&mut GatewayConfig), permits: &[u32]) -> Self {
        let scope = Scope::new();
        let (mut engines, mut servers) = (Vec::new(), Vec::new());
        for (at, permits) in permits.iter().enumerate() {
            let engine = Engine::start(&scope).await;
            servers.push(ServerSpec::new(format!("s{at}"), &engine.url, *permits));
            engines.push(engine);
        }
        let engine = engines.remove(0);
        let balancer = LoadBalancer::new(BalancerConfig::default(), servers).unwrap();
        let next = AtomicU64::new(1);
        let entropy = Entropy(Arc::new(move || {
            u128::from(next.fetch_add(1, Ordering::Relaxed))
                .wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835)
        }));
        let mut config = GatewayConfig::new("nowhere", Arc::new(Letters), entropy, || 1_000);
        change(&mut config);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let hosted = Hosted::open(config, balancer.clone(), None, listener, &scope).unwrap();
        let client = Client::builder().no_proxy().build().unwrap();
        Self { _scope: scope, engine, others: engines, balancer, hosted, client, counts: Arc::default() }
    }

    pub(super) fn begin(&self, uid: &str, limits: Limits) -> Session {
        let meter: Arc<dyn CallMeter> = Arc::<Counts>::clone(&self.counts);
        let opening = Opening {
            uid: uid.to_owned(),
            seed: 7,
            sampling: Sampling::default(),
            limits,
            meter: Some(meter),
        };
        self.hosted.begin(opening).unwrap()
    }

    pub(super) async fn chat(&self, base: &str, messages: Value) -> Response {
        let body = json!({ "model": "m", "messages": messages });
        self.client.post(format!("{base}/chat/completions")).json(&body).send().await.unwrap()
    }

    pub(super) async fn until(&self, what: &str, look: impl Fn() -> bool) {
        let looking = async {
            while !look() {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        tokio::time::timeout(PATIENCE, looking).await.unwrap_or_else(|_| panic!("never: {what}"));
    }
}

#[tokio::test]
async fn a_run_takes_the_turns_out_and_nothing_is_left() {
    let run = Run::new(|_| ()).await;
    run.engine.script([says("first"), says("second")]);
    let session = run.begin("t-1", Limits::default());
    let base = session.base_url();
    let first = read(run.chat(&base, json!([user("x")])).await).await.1;
    let second = read(run.chat(&base, json!([user("x"), said(&first), user("y")])).await).await.1;
    assert_eq!(second["choices"][0]["message"]["content"], "second");
    let taken = session.take().await;
    let sampled: Vec<Vec<u32>> = taken.trajectory.turns().map(|turn| turn.sampled_ids().to_vec()).collect();
    assert_eq!(sampled, run.engine.drawn());
    assert_eq!(taken.drawn_tokens, sampled.concat().len() as u64);
    assert_eq!(run.counts.all(), [2, taken.drawn_tokens, 0]);
    assert_eq!((taken.end, taken.reward, taken.server.as_str()), (End::Completed, None, "s0"));
    assert_eq!((run.hosted.trajectories(), run.balancer.snapshot().in_use()), (0, 0));
    let late = run.chat(&base, json!([user("z")])).await;
    assert_eq!(late.headers()["x-should-retry"], "false");
    let (status, late) = read(late).await;
    assert_eq!((status, &late["error"]["code"]), (400, &json!("trajectory_ended")));
    // Only the run opens trajectories.
    let root = run.hosted.root();
    let opened = run.client.post(format!("{root}/trajectories")).json(&json!({})).send().await.unwrap();
    assert_eq!(opened.status(), 404);
}

#[tokio::test]
async fn an_abort_reaches_the_engine_and_refuses_later_calls() {
    let run = Run::new(|_| ()).await;
    let session = run.begin("t-1", Limits::default());
    let base = session.base_url();
    run.engine.hold();
    let call = run.chat(&base, json!([user("x")]));
    let abort = async {
        run.until("a request for tokens", || run.engine.running() == 1).await;
        drop(session);
    };
    let (answer, ()) = futures::join!(call, abort);
    assert_eq!(answer.headers()["x-should-retry"], "false");
    let (status, refused) = read(answer).await;
    assert_eq!((status, &refused["error"]["code"]), (400, &json!("trajectory_ended")), "{refused}");
    let is_over = || run.balancer.snapshot().in_use() == 0 && run.engine.running() == 0;
    run.until("the permit is returned and the request is gone", is_over).await;
    run.engine.go();
    let (status, late) = read(run.chat(&base, json!([user("x")])).await).await;
    assert_eq!((status, &late["error"]["code"]), (400, &json!("trajectory_ended")));
    assert!(run.engine.drawn().is_empty(), "the engine has drawn tokens for an aborted trajectory");
    assert_eq!(run.hosted.trajectories(), 0);
    assert_eq!(run.counts.all(), [1, 0, 1]);
}

/// Control of servers whose count of tokens stands still.
struct Still;

impl EngineControl for Still {
    fn health<'a>(&'a self, _server: &'a ServerRef) -> BoxFuture<'a, Result<(), ControlError>> {
        async { Ok(()) }.boxed()
    }

    fn load<'a>(&'a self, _server: &'a ServerRef) -> BoxFuture<'a, Result<EngineLoad, ControlError>> {
        let load = EngineLoad { running: 1, generation_tokens_total: Some(9), ..EngineLoad::default() };
        async { Ok(load) }.boxed()
    }

    fn abort<'a>(
        &'a self,
        _server: &'a ServerRef,
        _request_id: &'a str,
    ) -> BoxFuture<'a, Result<(), ControlError>> {
        async { Ok(()) }.boxed()
    }
}

#[tokio::test]
async fn the_time_in_which_an_engine_stands_still_is_known_for_requests_without_an_answer() {
    let run = Run::new(|_| ()).await;
    let session = run.begin("t-1", Limits::default());
    let base = session.base_url();
    run.engine.hold();
    let least = Duration::from_millis(20);
    let call = run.chat(&base, json!([user("x")]));
    let abort = async {
        run.until("a request for tokens", || run.engine.running() == 1).await;
        let (server, since) = (run.balancer.snapshot().servers[0].id, Instant::now());
        let mut monitor = Monitor::new(run.balancer.clone(), Arc::new(Still), MonitorConfig::default());
        let looking = async {
            while run.balancer.stood_still(server, since) < least {
                monitor.look().await;
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        tokio::time::timeout(PATIENCE, looking).await.unwrap();
        drop(session);
    };
    futures::join!(call, abort);
    run.until("the request is given up", || run.counts.all() == [1, 0, 1]).await;
    assert!(*run.counts.still.lock() >= least, "{:?}", run.counts);
}

#[tokio::test]
async fn a_limit_ends_a_trajectory_of_a_run() {
    let run = Run::new(|_| ()).await;
    let session = run.begin("t-1", Limits { turns: 1, ..Limits::default() });
    let base = session.base_url();
    assert_eq!(run.chat(&base, json!([user("x")])).await.status(), 200);
    assert_eq!(session.ended_by(), None);
    assert_eq!(run.chat(&base, json!([user("y")])).await.status(), 400);
    assert_eq!(session.ended_by(), Some(End::Turns));
    let taken = session.take().await;
    assert_eq!((taken.end, taken.trajectory.turns().count()), (End::Turns, 1));
}

#[tokio::test]
async fn an_agent_rewards_itself_only_where_it_may() {
    for may in [false, true] {
        let run = Run::new(|config| config.agents_reward = may).await;
        let session = run.begin("t-1", Limits::default());
        let give =
            |reward: f32| run.client.post(session.reward_url()).json(&json!({ "reward": reward })).send();
        let first = give(0.5).await.unwrap().status();
        let again = give(0.5).await.unwrap().status();
        let other = give(0.75).await.unwrap().status();
        let statuses = [first, again, other].map(|status| status.as_u16());
        assert_eq!(statuses, if may { [200, 200, 409] } else { [400, 400, 400] });
        assert_eq!(session.take().await.reward, may.then_some(0.5));
    }
}

#[tokio::test]
async fn a_server_without_the_endpoints_is_found_before_a_run() {
    let run = Run::new(|_| ()).await;
    run.hosted.check(&run.engine.url).await.unwrap();
    run.engine.takes_no_ids();
    let error = run.hosted.check(&run.engine.url).await.unwrap_err().to_string();
    assert!(error.contains("--enable-scale-out") && error.contains(&run.engine.url), "{error}");
}

#[tokio::test]
async fn tokens_have_the_version_of_the_run_where_a_server_reports_none() {
    let run = Run::new(|_| ()).await;
    run.counts.version.store(3, Ordering::Relaxed);
    run.engine.takes_no_ids();
    let session = run.begin("t-1", Limits::default());
    let base = session.base_url();
    run.chat(&base, json!([user("x")])).await;
    run.counts.version.store(4, Ordering::Relaxed);
    run.chat(&base, json!([user("y")])).await;
    let taken = session.take().await;
    let spans = |at: usize| taken.trajectory.turns().nth(at).unwrap().version_spans()[0].version.to_string();
    assert_eq!([spans(0), spans(1)], ["3", "4"]);
    assert_eq!(taken.reencoded.len(), 2);
    let salts: Vec<Value> = run
        .engine
        .requests()
        .iter()
        .map(|request| request["sampling_params"]["cache_salt"].clone())
        .collect();
    assert_eq!(salts, [json!("v3"), json!("v4")]);
}
