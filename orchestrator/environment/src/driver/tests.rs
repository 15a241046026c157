use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use futures::FutureExt;
use futures::future::{self, BoxFuture, join_all};
use rolldock_data::TextCodec;
use rolldock_engine::SamplingParams;
use rolldock_engine::simulated::SimulatedEngine;
use rolldock_loadbalancer::{BalancerConfig, LoadBalancer, ServerSpec};
use rolldock_scope::Scope;
use rolldock_simengine::{
    AnswerKey, Fault, Script, ServerConfig, SimServer, TextCodec as SimCodec, Workload, WorkloadConfig,
};
use rolldock_trajectory::{HistoryPolicy, Template, invariants};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{Driver, TrajectorySeed};
use crate::{
    Action, Begun, Calculator, End, Environment, EnvironmentError, ErrorClass, Limits, NumberGame,
    Observation, RunError, Step, Task,
};

const CALL: [&str; 6] = [
    "<to",
    "ol_c",
    "all>{\"name\": \"calcu",
    "lator\", \"arguments\": {\"expression\": \"2 * (3",
    " + 4)\"}}</tool_c",
    "all>",
];
const ANSWER: [&str; 3] = ["The an", "swer is 1", "4"];

/// A fleet whose model says given turns, in pieces that its tokenizer would not choose.
struct Fleet {
    scope: Scope,
    engine: SimulatedEngine,
    driver: Driver,
    codec: Arc<TextCodec>,
}

fn fleet(servers: &[&str], capacity: u32, turns: Value) -> Fleet {
    let scope = Scope::new();
    let script = serde_json::to_vec(&json!({ "turns": turns })).unwrap();
    let script = Script::from_json(&script, &SimCodec::builtin().unwrap()).unwrap();
    let key: Arc<dyn AnswerKey> = Arc::new(script);
    let workload = Arc::new(Workload::new(WorkloadConfig::default()));
    let engine = SimulatedEngine::new(servers.iter().map(|name| {
        let config = ServerConfig { name: (*name).to_owned(), ..ServerConfig::default() };
        let (workload, key) = (Arc::clone(&workload), Arc::clone(&key));
        SimServer::start(config, workload, key, scope.tracker(), scope.token().clone()).unwrap()
    }));
    let specs = servers.iter().map(|name| ServerSpec::unreached(*name, capacity)).collect();
    let codec = Arc::new(TextCodec::builtin().unwrap());
    let driver = Driver {
        engine: Arc::new(engine.clone()),
        balancer: LoadBalancer::new(BalancerConfig::default(), specs).unwrap(),
        template: Arc::clone(&codec) as Arc<dyn Template>,
        sampling: Arc::new(SamplingParams::default()),
        history: HistoryPolicy::Append,
        limits: Limits::default(),
        policy_version: Arc::new(AtomicU64::new(3)),
    };
    Fleet { scope, engine, driver, codec }
}

fn calculating() -> Value {
    json!([{ "pieces": CALL }, { "pieces": ANSWER }])
}

fn task(answer: &str) -> Task {
    Task {
        messages: vec![json!({ "role": "user", "content": "What is 2 * (3 + 4)?" })],
        answer: answer.to_owned(),
        fields: json!({}),
        seed: 7,
    }
}

fn names(number: u64) -> TrajectorySeed {
    TrajectorySeed { uid: format!("t-{number}").into(), group: number, seed: number }
}

/// Ids of pieces that are encoded one by one.
fn encoded(codec: &TextCodec, pieces: &[&str]) -> Vec<u32> {
    pieces.iter().flat_map(|piece| codec.encode(piece).unwrap()).collect()
}

#[tokio::test(start_paused = true)]
async fn a_calculation_of_two_turns_is_one_row_of_the_tokens_that_were_sampled() {
    let fleet = fleet(&["a"], 4, calculating());
    let mut calculator = Calculator::default();
    let finished = fleet.driver.run(&mut calculator, &task("14"), &names(1)).await.unwrap();
    assert_eq!((finished.end, finished.reward()), (End::Done, 1.0));
    assert_eq!(finished.infos, [json!({ "calls": 1 }), json!({ "is_right": true })]);

    let rows = finished.trajectory.rows();
    assert_eq!(invariants::trained_once(&finished.trajectory, &rows), Ok(()));
    let [row] = rows.as_slice() else { panic!("{} rows", rows.len()) };
    let end = fleet.codec.eos_ids()[0];
    let (call, answer) = (encoded(&fleet.codec, &CALL), encoded(&fleet.codec, &ANSWER));
    assert_ne!(call, fleet.codec.encode(&CALL.concat()).unwrap(), "the tokenizer would choose other tokens");
    let between = "<|im_end|>\n<|im_start|>user\n<tool_response>\n14\n</tool_response><|im_end|>\n\
                   <|im_start|>assistant\n";
    let between = fleet.codec.encode(between).unwrap();
    assert_eq!(row.response_ids, [&call[..], &[end], &between, &answer, &[end]].concat());
    let masks = [vec![1; call.len() + 1], vec![0; between.len()], vec![1; answer.len() + 1]];
    assert_eq!(row.response_mask, masks.concat());
    assert_eq!(row.turns.iter().map(|turn| turn.reward).collect::<Vec<_>>(), [None, Some(1.0)]);
    assert_eq!(finished.sampled_tokens() as usize, call.len() + answer.len() + 2);
    let made = fleet.engine.server("a").unwrap().stats().generation_tokens_total;
    assert_eq!(finished.sampled_tokens(), made, "the engine counts the same tokens");
    assert_eq!(fleet.driver.balancer.snapshot().in_use(), 0);
    fleet.scope.token().cancel();
}

#[tokio::test(start_paused = true)]
async fn equal_seeds_give_equal_trajectories_and_a_wrong_answer_is_worth_nothing() {
    let fleet = fleet(&["a", "b"], 4, calculating());
    let mut calculator = Calculator::default();
    let first = fleet.driver.run(&mut calculator, &task("15"), &names(1)).await.unwrap();
    let second = fleet.driver.run(&mut calculator, &task("15"), &names(1)).await.unwrap();
    assert_eq!(first.trajectory, second.trajectory);
    assert_eq!(first.reward(), 0.0);
}

/// A calculator that takes its time, and checks that no trajectory that waits for it holds a permit.
struct Slow {
    calculator: Calculator,
    balancer: LoadBalancer,
    alone: bool,
}

impl Environment for Slow {
    fn reset<'a>(&'a mut self, task: &'a Task) -> BoxFuture<'a, Result<Begun, EnvironmentError>> {
        self.calculator.reset(task)
    }

    fn step<'a>(&'a mut self, action: Action<'a>) -> BoxFuture<'a, Result<Step, EnvironmentError>> {
        let step = async move {
            if self.alone {
                assert_eq!(self.balancer.snapshot().in_use(), 0, "a tool holds a permit");
            }
            tokio::time::sleep(Duration::from_secs(100)).await;
            self.calculator.step(action).await
        };
        step.boxed()
    }
}

#[tokio::test(start_paused = true)]
async fn tools_hold_no_permit_and_run_side_by_side() {
    let fleet = fleet(&["a"], 1, calculating());
    let slow =
        |alone| Slow { calculator: Calculator::default(), balancer: fleet.driver.balancer.clone(), alone };
    let alone = fleet.driver.run(&mut slow(true), &task("14"), &names(0)).await.unwrap();
    assert_eq!(alone.end, End::Done);
    let since = Instant::now();
    let many = join_all((1..=20).map(|number| {
        let mut environment = slow(false);
        let driver = &fleet.driver;
        async move { driver.run(&mut environment, &task("14"), &names(number)).await.unwrap().reward() }
    }));
    assert_eq!(many.await, [1.0; 20]);
    // Each has two steps of 100 s. One place for the 40 answers adds less than the steps of one more.
    assert!(since.elapsed() < Duration::from_secs(300), "{:?}", since.elapsed());
}

#[tokio::test(start_paused = true)]
async fn limits_end_a_trajectory_and_keep_its_turns() {
    let mut fleet = fleet(&["a"], 4, json!([{ "pieces": CALL }]));
    let limits = Limits::default();
    let call = encoded(&fleet.codec, &CALL).len() as u32 + 1;
    for (limited, expected, turns) in [
        (Limits { turns_max: 3, ..limits }, End::Turns, 3..4),
        (Limits { sampled_tokens_max: 2 * call, ..limits }, End::Tokens, 2..3),
        (Limits { context_tokens_max: 500, ..limits }, End::Tokens, 1..8),
        (Limits { context_tokens_max: 5, ..limits }, End::Tokens, 0..1),
    ] {
        fleet.driver.limits = limited;
        let finished = fleet.driver.run(&mut Calculator::default(), &task("14"), &names(1)).await.unwrap();
        assert_eq!(finished.end, expected, "{limited:?}");
        let count = finished.trajectory.turns().count();
        assert!(turns.contains(&count), "{limited:?}: {count} turns");
    }
    fleet.driver.limits = Limits { turn_time_max: Duration::from_secs(50), ..limits };
    let balancer = fleet.driver.balancer.clone();
    let mut slow = Slow { calculator: Calculator::default(), balancer, alone: true };
    let finished = fleet.driver.run(&mut slow, &task("14"), &names(1)).await.unwrap();
    assert_eq!((finished.end, finished.trajectory.turns().count()), (End::Time, 1));
    assert_eq!(fleet.driver.balancer.snapshot().in_use(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_failed_attempt_is_repeated_elsewhere_and_the_last_one_is_told() {
    let mut fleet = fleet(&["a", "b"], 4, calculating());
    fleet.engine.server("a").unwrap().inject(Fault::Error500 { share: 1.0 });
    let finished = fleet.driver.run(&mut Calculator::default(), &task("14"), &names(1)).await.unwrap();
    assert_eq!(finished.end, End::Done);
    fleet.engine.server("b").unwrap().inject(Fault::Error500 { share: 1.0 });
    fleet.driver.limits.attempts_max = 2;
    let error = fleet.driver.run(&mut Calculator::default(), &task("14"), &names(2)).await.unwrap_err();
    assert!(matches!(error, RunError::Engine { turn: 0, attempts: 2, .. }), "{error}");
    assert_eq!(error.class(), ErrorClass::Fault);
    let bad_row = fleet.driver.run(&mut Calculator::default(), &task("many"), &names(3)).await.unwrap_err();
    assert_eq!(bad_row.class(), ErrorClass::Client);
}

#[tokio::test(start_paused = true)]
async fn a_game_rewards_each_turn() {
    let turns = json!([{ "pieces": ["5", "0"] }, { "pieces": ["no ", "idea"] }]);
    let mut fleet = fleet(&["a"], 4, turns);
    fleet.driver.limits.turns_max = 3;
    let finished = fleet.driver.run(&mut NumberGame::default(), &task(""), &names(1)).await.unwrap();
    let rewards: Vec<_> = finished.trajectory.turns().map(|turn| turn.reward()).collect();
    assert!(rewards[0] > Some(0.0) && rewards[1..] == [Some(0.0), Some(0.0)], "{rewards:?}");
    let [row] = &finished.trajectory.rows()[..] else { panic!() };
    assert_eq!(row.turns.iter().map(|turn| turn.reward).collect::<Vec<_>>(), rewards);
}

/// Answers in token ids.
struct InIds(u32);

impl Environment for InIds {
    fn reset<'a>(&'a mut self, task: &'a Task) -> BoxFuture<'a, Result<Begun, EnvironmentError>> {
        future::ready(Ok(Begun { messages: task.messages.clone(), tools: None })).boxed()
    }

    fn step<'a>(&'a mut self, action: Action<'a>) -> BoxFuture<'a, Result<Step, EnvironmentError>> {
        self.0 += 1;
        let observation = Observation::Ids(vec![11, 12, action.ids[0]]);
        let step = Step { observation, reward: Some(0.25), is_done: self.0 == 2, info: Value::Null };
        future::ready(Ok(step)).boxed()
    }
}

#[tokio::test(start_paused = true)]
async fn an_environment_may_answer_in_ids() {
    let fleet = fleet(&["a"], 4, json!([{ "ids": [21, 22] }]));
    let finished = fleet.driver.run(&mut InIds(0), &task(""), &names(1)).await.unwrap();
    let end = fleet.codec.eos_ids()[0];
    let [row] = &finished.trajectory.rows()[..] else { panic!() };
    assert_eq!(row.response_ids, [21, 22, end, 11, 12, 21, 21, 22, end]);
    assert_eq!(row.response_mask, [1, 1, 1, 0, 0, 0, 1, 1, 1]);
    assert_eq!(finished.reward(), 0.5);
}
