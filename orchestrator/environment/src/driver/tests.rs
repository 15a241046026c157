use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::{self, BoxFuture};
use rolldock_data::TextCodec;
use rolldock_dispatch::{FinishReason, VersionSpan};
use rolldock_trajectory::{HistoryPolicy, Sampled, Template, invariants};
use serde_json::{Value, json};

use super::Driver;
use crate::{
    Action, Begun, Calculator, End, Environment, EnvironmentError, ErrorClass, Finished, Limits, Model,
    ModelError, NumberGame, Observation, RunError, Step, Task, TurnRequest,
};

/// A tool call, split into pieces that the tokenizer would not choose.
const CALL: [&str; 6] = [
    "<to",
    "ol_c",
    "all>{\"name\": \"calcu",
    "lator\", \"arguments\": {\"expression\": \"2 * (3",
    " + 4)\"}}</tool_c",
    "all>",
];
const ANSWER: [&str; 3] = ["The an", "swer is 1", "4"];

/// A model that returns the given ids turn by turn, and then repeats the last turn.
struct Scripted(Vec<Vec<u32>>);

impl Model for Scripted {
    fn sample(&self, turn: TurnRequest) -> BoxFuture<'_, Result<Sampled, ModelError>> {
        let said = self.0.get(turn.number as usize).or(self.0.last()).unwrap();
        let tokens = said.len().min(turn.tokens_max as usize);
        let span = VersionSpan { version: "3".into(), start: 0, end: tokens as u32 };
        let finish_reason = if tokens == said.len() { FinishReason::Stop } else { FinishReason::Length };
        future::ready(Ok(Sampled {
            ids: said[..tokens].to_vec(),
            logprobs: vec![-0.5; tokens],
            version_spans: vec![span],
            versions_reported: false,
            finish_reason,
        }))
        .boxed()
    }
}

struct Rig {
    driver: Driver,
    model: Scripted,
    codec: Arc<TextCodec>,
}

/// The ids of pieces that are encoded one by one.
fn encoded(codec: &TextCodec, pieces: &[&str]) -> Vec<u32> {
    pieces.iter().flat_map(|piece| codec.encode(piece).unwrap()).collect()
}

fn rig(turns: &[&[&str]]) -> Rig {
    let codec = Arc::new(TextCodec::builtin().unwrap());
    let end = codec.eos_ids()[0];
    let said = turns.iter().map(|pieces| [encoded(&codec, pieces), vec![end]].concat()).collect();
    let template = Arc::clone(&codec) as Arc<dyn Template>;
    let driver = Driver { template, history: HistoryPolicy::Append, limits: Limits::default() };
    Rig { driver, model: Scripted(said), codec }
}

impl Rig {
    async fn run(&self, environment: &mut dyn Environment, answer: &str) -> Result<Finished, RunError> {
        self.driver.run(environment, &self.model, &task(answer), &"t-1".into()).await
    }
}

fn task(answer: &str) -> Task {
    Task {
        messages: vec![json!({ "role": "user", "content": "What is 2 * (3 + 4)?" })],
        answer: answer.to_owned(),
        fields: json!({}),
        seed: 7,
    }
}

#[tokio::test(start_paused = true)]
async fn a_calculation_of_two_turns_is_one_row_of_the_tokens_that_were_sampled() {
    let rig = rig(&[&CALL, &ANSWER]);
    let finished = rig.run(&mut Calculator::default(), "14").await.unwrap();
    assert_eq!((finished.end, finished.reward(), finished.is_truncated()), (End::Done, Some(1.0), false));
    assert_eq!(finished.infos, [json!({ "calls": 1 }), json!({ "is_right": true })]);

    let rows = finished.trajectory.rows();
    assert_eq!(invariants::trained_once(&finished.trajectory, &rows), Ok(()));
    let [row] = rows.as_slice() else { panic!("{} rows", rows.len()) };
    let end = rig.codec.eos_ids()[0];
    let (call, answer) = (encoded(&rig.codec, &CALL), encoded(&rig.codec, &ANSWER));
    assert_ne!(call, rig.codec.encode(&CALL.concat()).unwrap(), "the tokenizer would choose other tokens");
    let between = "<|im_end|>\n<|im_start|>user\n<tool_response>\n14\n</tool_response><|im_end|>\n\
                   <|im_start|>assistant\n";
    let between = rig.codec.encode(between).unwrap();
    assert_eq!(row.response_ids, [&call[..], &[end], &between, &answer, &[end]].concat());
    let masks = [vec![1; call.len() + 1], vec![0; between.len()], vec![1; answer.len() + 1]];
    assert_eq!(row.response_mask, masks.concat());
    assert_eq!(row.turns.iter().map(|turn| turn.reward).collect::<Vec<_>>(), [None, Some(1.0)]);
    assert_eq!(finished.sampled_tokens() as usize, call.len() + answer.len() + 2);
}

#[tokio::test(start_paused = true)]
async fn equal_answers_give_equal_trajectories_and_a_wrong_answer_is_worth_nothing() {
    let rig = rig(&[&CALL, &ANSWER]);
    let mut calculator = Calculator::default();
    let first = rig.run(&mut calculator, "15").await.unwrap();
    let second = rig.run(&mut calculator, "15").await.unwrap();
    assert_eq!(first.trajectory, second.trajectory);
    assert_eq!(first.reward(), Some(0.0));
}

/// A calculator whose calls take longer than the limit.
struct Slow(Calculator);

impl Environment for Slow {
    fn reset<'a>(&'a mut self, task: &'a Task) -> BoxFuture<'a, Result<Begun, EnvironmentError>> {
        self.0.reset(task)
    }

    fn step<'a>(&'a mut self, action: Action<'a>) -> BoxFuture<'a, Result<Step, EnvironmentError>> {
        async move {
            tokio::time::sleep(Duration::from_secs(100)).await;
            self.0.step(action).await
        }
        .boxed()
    }
}

#[tokio::test(start_paused = true)]
async fn limits_end_a_trajectory_and_keep_its_turns() {
    let mut rig = rig(&[&CALL]);
    let limits = Limits::default();
    let call = rig.model.0[0].len() as u32;
    for (limited, expected, turns) in [
        (Limits { turns_max: 3, ..limits }, End::Turns, 3..4),
        (Limits { sampled_tokens_max: 2 * call, ..limits }, End::Tokens, 2..3),
        (Limits { context_tokens_max: 500, ..limits }, End::Tokens, 1..8),
        (Limits { context_tokens_max: 5, ..limits }, End::Tokens, 0..1),
    ] {
        rig.driver.limits = limited;
        let finished = rig.run(&mut Calculator::default(), "14").await.unwrap();
        assert_eq!((finished.end, finished.is_truncated()), (expected, true), "{limited:?}");
        let count = finished.trajectory.turns().count();
        assert!(turns.contains(&count), "{limited:?}: {count} turns");
        assert_eq!(finished.reward(), None, "no turn has a reward");
    }
    rig.driver.limits = Limits { turn_time_max: Duration::from_secs(50), ..limits };
    let finished = rig.run(&mut Slow(Calculator::default()), "14").await.unwrap();
    assert_eq!((finished.end, finished.trajectory.turns().count()), (End::Time, 1));
}

/// A model that cannot be reached.
struct Away;

impl Model for Away {
    fn sample(&self, _turn: TurnRequest) -> BoxFuture<'_, Result<Sampled, ModelError>> {
        future::ready(Err(ModelError { reason: "no server".to_owned() })).boxed()
    }
}

#[tokio::test(start_paused = true)]
async fn failures_name_the_turn_and_rows_that_cannot_be_used_are_told_apart() {
    let rig = rig(&[&ANSWER]);
    let away = rig.driver.run(&mut Calculator::default(), &Away, &task("14"), &"t-1".into()).await;
    let error = away.unwrap_err();
    assert_eq!((error.to_string().as_str(), error.class()), ("turn=0: no server", ErrorClass::Retryable));
    let bad_row = rig.run(&mut Calculator::default(), "many").await.unwrap_err();
    assert_eq!(bad_row.class(), ErrorClass::Client);
}

#[tokio::test(start_paused = true)]
async fn a_game_rewards_each_turn() {
    let mut rig = rig(&[&["5", "0"], &["no ", "idea"]]);
    rig.driver.limits.turns_max = 3;
    let finished = rig.run(&mut NumberGame::default(), "").await.unwrap();
    let rewards: Vec<_> = finished.trajectory.turns().map(|turn| turn.reward()).collect();
    assert!(rewards[0] > Some(0.0) && rewards[1..] == [Some(0.0), Some(0.0)], "{rewards:?}");
    let [row] = &finished.trajectory.rows()[..] else { panic!() };
    assert_eq!(row.turns.iter().map(|turn| turn.reward).collect::<Vec<_>>(), rewards);
}

/// An environment that answers in token ids.
struct InIds {
    turns: u32,
    reward: f32,
}

impl Environment for InIds {
    fn reset<'a>(&'a mut self, task: &'a Task) -> BoxFuture<'a, Result<Begun, EnvironmentError>> {
        future::ready(Ok(Begun { messages: task.messages.clone(), tools: None })).boxed()
    }

    fn step<'a>(&'a mut self, action: Action<'a>) -> BoxFuture<'a, Result<Step, EnvironmentError>> {
        self.turns += 1;
        let observation = Observation::Ids(vec![11, 12, action.ids[0]]);
        let step =
            Step { observation, reward: Some(self.reward), is_done: self.turns == 2, info: Value::Null };
        future::ready(Ok(step)).boxed()
    }
}

#[tokio::test(start_paused = true)]
async fn an_environment_may_answer_in_ids() {
    let mut rig = rig(&[&["x"]]);
    let end = rig.codec.eos_ids()[0];
    rig.model = Scripted(vec![vec![21, 22, end]]);
    let finished = rig.run(&mut InIds { turns: 0, reward: 0.25 }, "").await.unwrap();
    let [row] = &finished.trajectory.rows()[..] else { panic!() };
    assert_eq!(row.response_ids, [21, 22, end, 11, 12, 21, 21, 22, end]);
    assert_eq!(row.response_mask, [1, 1, 1, 0, 0, 0, 1, 1, 1]);
    assert_eq!(finished.reward(), Some(0.5));
    let error = rig.run(&mut InIds { turns: 0, reward: f32::NAN }, "").await.unwrap_err();
    assert!(error.to_string().contains("turn=0 the reward NaN, expected a finite number"), "{error}");
}
