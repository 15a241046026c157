//! Ten thousand sessions whose agents go away, in virtual time. Everything that the sessions held is released.
//!
//! There are no sockets, because virtual time would pass while a task waits for a socket. A session takes the same
//! things as a call: a place in its trajectory, and a permit. The session holds them when it is dropped, like the
//! future of a call that is dropped with its connection.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rolldock_dispatch::{FinishReason, VersionSpan};
use rolldock_loadbalancer::{BalancerConfig, LoadBalancer, PermitRequest, ServerSpec};
use rolldock_queue::{Durability, PartitionSpec, QueueConfig, TransferQueue};
use rolldock_scope::Scope;
use rolldock_trajectory::{Delivery, Plan, Request, Sampled};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::engine::Letters;
use super::rig::{counted, user};
use crate::answer::{Answer, AnswerFinish};
use crate::config::{GatewayConfig, Limits, Sampling, Spec};
use crate::core::Core;
use crate::keeping::{self, Puts};
use crate::trajectories::{End, Found, InFlight, One, Reward};
use crate::turns::{Made, commit};

const SESSIONS: u64 = 10_000;
const GROUP: u64 = 4;
const LIMITS: Limits =
    Limits { turns: 8, tokens: 1000, turn_tokens: 10, wall: 3600.0, idle: 600.0, reward: 600.0 };

fn spec(number: u64) -> Spec {
    Spec {
        uid: format!("t-{number}"),
        capability: format!("c-{number}"),
        opened_s: 1_000,
        group: format!("g-{}", number / GROUP),
        group_size: GROUP as u32,
        limits: LIMITS,
        sampling: Sampling::default(),
        seed: number,
        cache_salt: None,
        prompt: serde_json::Value::Null,
        metadata: serde_json::Map::new(),
    }
}

fn made(one: &One, turn: u64) -> Made {
    let request = Request::chat(vec![user(&format!("question {turn}"))], None).unwrap();
    let planned = one.live.lock().forest.plan(&request, &Letters).unwrap();
    let prompt = match planned {
        Plan::Ready(prompt) => prompt,
        Plan::Whole(whole) => whole.with_ids(vec![1, 2, 3]),
    };
    let sampled = Sampled {
        ids: vec![7, 8, 9],
        logprobs: vec![-0.5; 3],
        version_spans: vec![VersionSpan { version: "1".into(), start: 0, end: 3 }],
        versions_reported: true,
        finish_reason: FinishReason::Length,
    };
    let answer = Answer {
        id: format!("{}-{turn}", one.spec.uid),
        created: 1_000,
        model: "m".to_owned(),
        text: Some("text".to_owned()),
        reasoning: None,
        tool_calls: Vec::new(),
        finish: AnswerFinish::Length,
        prompt_tokens: 3,
        completion_tokens: 3,
        logprobs: serde_json::Value::Null,
    };
    Made { prompt, sampled, answer, server: "s0".into(), is_fallback: false }
}

/// What a session does before its agent is gone for good.
struct Plans {
    turns: u64,
    /// Whether the agent goes away in the middle of a call.
    in_a_call: bool,
    /// The reward that the harness gives; `None` if it gives none.
    reward: Option<f32>,
}

/// Weak references to all trajectories, which do not keep the trajectories in memory.
type Ones = Arc<Mutex<Vec<Weak<One>>>>;

async fn session(core: Arc<Core>, balancer: LoadBalancer, ones: Ones, number: u64, plans: Plans) {
    let mut random = ChaCha8Rng::seed_from_u64(number);
    let mut pause = async || tokio::time::sleep(Duration::from_millis(random.random_range(0..60_000))).await;
    pause().await;
    let one = core.open_trajectory(spec(number)).await.unwrap();
    ones.lock().push(Arc::downgrade(&one));
    for turn in 0..=plans.turns {
        let is_last = turn == plans.turns;
        if is_last && !plans.in_a_call {
            break;
        }
        let in_flight = InFlight::begin(&one, &core.book, u128::from(turn), 10).await.unwrap();
        let permit = balancer.acquire(PermitRequest::new(1)).await.unwrap();
        pause().await;
        if is_last {
            return;
        }
        drop(permit);
        let (turn, _) = commit(&core, in_flight, made(&one, turn)).await.unwrap();
        core.delivery(&one, turn, Delivery::Delivered);
        pause().await;
    }
    if let Some(reward) = plans.reward {
        core.reward(&one, Reward { reward, turns: Vec::new() }).unwrap();
        core.end(&one, End::Completed);
    }
}

#[tokio::test(start_paused = true)]
async fn ten_thousand_abandoned_sessions_leave_a_fate_each_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let config = GatewayConfig {
        // The thread of the log does not run in virtual time, so nothing may wait for it.
        durability: Durability::None,
        ..GatewayConfig::new(folder.path(), Arc::new(Letters), counted(), || 1_000)
    };
    let scope = Scope::new();
    let (core, settled) = Core::open(config, scope.clone()).await.unwrap();
    let queue = TransferQueue::open(QueueConfig::default()).unwrap();
    drop(queue.declare(PartitionSpec::new("train", ["train"], 1 << 20)).await.unwrap());
    let balancer =
        LoadBalancer::new(BalancerConfig::default(), vec![ServerSpec::new("s0", "http://s0", 16_384)])
            .unwrap();
    let end = CancellationToken::new();
    let watching = scope.spawn("limits", keeping::watch(Arc::clone(&core), end.clone()));
    let puts = Puts::new(Arc::clone(&core), Arc::new(queue.clone()));
    let putting = scope.spawn("puts", puts.run(settled, end.clone()));

    let mut random = ChaCha8Rng::seed_from_u64(10_000);
    let (mut rewarded_rows, mut opened) = (BTreeMap::new(), Vec::new());
    let ones: Ones = Arc::default();
    let began = Instant::now();
    for number in 0..SESSIONS {
        // The last member of some groups never comes.
        if number % 40 == 3 {
            continue;
        }
        let in_a_call = random.random_bool(0.5);
        let plans = Plans {
            turns: random.random_range(0..3),
            in_a_call,
            reward: (!in_a_call && random.random_bool(0.3)).then_some(number as f32),
        };
        if plans.reward.is_some() {
            rewarded_rows.insert(number, plans.turns);
        }
        scope.spawn_detached(
            "session",
            session(Arc::clone(&core), balancer.clone(), Arc::clone(&ones), number, plans),
        );
        opened.push(number);
    }
    // A group waits for its missing members at most as long as its first member may take.
    let longest = Duration::from_secs_f64(60.0 + LIMITS.wall + LIMITS.reward + 10.0);
    while ones.lock().len() < opened.len() || core.book.counts() != (0, 0) {
        assert!(began.elapsed() < longest, "{:?} are left", core.book.counts());
        tokio::time::sleep(Duration::from_secs(5)).await;
    }
    assert_eq!(balancer.snapshot().in_use(), 0, "permits are back");
    assert!(ones.lock().iter().all(|one| one.strong_count() == 0), "memory is back");
    let mut ends: BTreeMap<&str, usize> = BTreeMap::new();
    for number in &opened {
        let Some(Found::Buried(left)) = core.book.by_uid(&format!("t-{number}")) else {
            panic!("session {number} has no fate")
        };
        *ends.entry(left.end.as_str()).or_default() += 1;
        // The agent begins anew with each question. Each question is therefore a separate turn and a separate row.
        assert_eq!(u64::from(left.rows), rewarded_rows.get(number).copied().unwrap_or(0), "session {number}");
    }
    let of = |end: &str| ends.get(end).copied().unwrap_or(0);
    assert_eq!(
        (of("completed"), of("completed") + of("idle")),
        (rewarded_rows.len(), opened.len()),
        "{ends:?}"
    );
    let rows = queue.partition("train").unwrap().stats().tasks[0].ready_rows as u64;
    assert_eq!(rows, rewarded_rows.values().sum::<u64>());
    end.cancel();
    drop(watching);
    putting.await.unwrap();
    scope.close(Duration::from_secs(1)).await;
}
