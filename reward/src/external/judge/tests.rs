//! Tests of a judge behind a real socket, and of reading verdicts.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::*;
use crate::external::test_server::{Reply, Server, job};
use crate::external::{ExternalConfig, OnFailure};

fn config(url: &str) -> JudgeConfig {
    JudgeConfig {
        url: url.into(),
        model: "judge-1".into(),
        template: "Q: {{ prompt }} A: {{ response }} ({{ ground_truth }}, {{ extra.index }})".into(),
        system: Some("Be just.".into()),
        max_tokens: Some(64),
        temperature: Some(0.0),
        api_key_env: None,
        pattern: r"(?i)verdict:\s*(\w+)".into(),
        words: Some(BTreeMap::from([("Right".into(), 1.0), ("wrong".into(), -1.0)])),
        range: None,
    }
}

fn says(text: &str) -> Reply {
    Reply::ok(json!({ "choices": [{ "message": { "role": "assistant", "content": text } }] }).to_string())
}

fn verdict(change: impl FnOnce(&mut JudgeConfig)) -> Result<Verdict, RewardError> {
    let mut config = config("http://judge/v1");
    change(&mut config);
    Verdict::new(&config)
}

fn in_range(least: f64, most: f64) -> Verdict {
    verdict(|config| {
        (config.words, config.range) = (None, Some([least, most]));
        config.pattern = r"\[\[(.*?)\]\]".into();
    })
    .unwrap()
}

#[tokio::test]
async fn a_judge_is_asked_with_rendered_messages() {
    let server = Server::start(|_, body| {
        let wanted = json!({
            "model": "judge-1",
            "messages": [
                { "role": "system", "content": "Be just." },
                { "role": "user", "content": "Q: What? A: <b> & \"c\" (42, 7)" },
            ],
            "max_tokens": 64,
            "temperature": 0.0,
        });
        assert_eq!(body, wanted);
        says("Verdict: wrong? No. VERDICT: RIGHT")
    })
    .await;
    let judge = Judge::new(&config(&server.url), None).unwrap();
    let score = judge.score(&job("<b> & \"c\"")).await.unwrap();
    assert_eq!(score, Score { score: 1.0, acc: 1.0, pred: Some("RIGHT".into()), ..Score::default() });
}

#[tokio::test]
async fn a_judge_that_hangs_ends_at_the_deadline_and_has_its_connection_closed() {
    let server = Server::start(|_, _| Reply::Hang).await;
    let external = ExternalConfig {
        judge: Some(config(&server.url)),
        deadline_s: 0.3,
        on_failure: OnFailure::Score(-2.0),
        consecutive_failures_max: 0,
        ..ExternalConfig::default()
    };
    let runner = external.build(TaskTracker::new(), CancellationToken::new()).unwrap();
    let started = Instant::now();
    assert_eq!(runner.score(&job("x")).await.unwrap().score, -2.0);
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    server.left(1).await;
}

#[tokio::test]
async fn a_judge_without_a_verdict_is_an_error_under_the_rule() {
    let server = Server::start(|number, _| match number {
        0 => says("I would rather not say"),
        1 => says("Verdict: perhaps"),
        _ => Reply::ok(r#"{"choices": []}"#),
    })
    .await;
    let external = ExternalConfig {
        judge: Some(config(&server.url)),
        on_failure: OnFailure::Stop,
        ..ExternalConfig::default()
    };
    let runner = external.build(TaskTracker::new(), CancellationToken::new()).unwrap();
    for words in ["expected a verdict", "one of the configured words", "choices[0].message.content"] {
        let error = runner.score(&job("x")).await.unwrap_err();
        assert!(matches!(error, RewardError::Stop { .. }) && error.to_string().contains(words), "{error}");
    }
    assert_eq!(server.requests(), 3, "nothing was tried again");
}

#[test]
fn numbers_are_scaled_and_bounded() {
    let verdict = in_range(1.0, 5.0);
    for (text, wanted) in [
        ("[[1]]", Some(0.0)),
        ("[[5.0]]", Some(1.0)),
        ("first [[2]], then [[ 4 ]].", Some(0.75)),
        ("[[0]]", None),
        ("[[NaN]]", None),
        ("[[five]]", None),
        ("5", None),
    ] {
        assert_eq!(verdict.read("judge", text).ok().map(|score| score.score), wanted, "{text}");
    }
    let far = format!("[[1]]{}", "é".repeat(10_000));
    let error = verdict.read("judge", &far).unwrap_err().to_string();
    assert!(error.chars().count() < 400, "{error}");
}

#[test]
fn wrong_settings_are_named() {
    let key_of = |result: Result<Verdict, RewardError>| match result {
        Err(RewardError::Misconfigured { key, .. }) => key,
        other => panic!("{other:?}"),
    };
    assert_eq!(key_of(verdict(|config| config.pattern = "no group".into())), "judge.pattern");
    assert_eq!(key_of(verdict(|config| config.pattern = "(a)(b)".into())), "judge.pattern");
    assert_eq!(key_of(verdict(|config| config.pattern = "(".into())), "judge.pattern");
    assert_eq!(key_of(verdict(|config| config.words = None)), "judge");
    assert_eq!(key_of(verdict(|config| config.range = Some([0.0, 1.0]))), "judge");
    assert_eq!(key_of(verdict(|config| config.words = Some(BTreeMap::new()))), "judge.words");
    let empty = |config: &mut JudgeConfig| (config.words, config.range) = (None, Some([1.0, 1.0]));
    assert_eq!(key_of(verdict(empty)), "judge.range");

    let judge = |change: fn(&mut JudgeConfig)| {
        let mut config = config("http://judge/v1");
        change(&mut config);
        Judge::new(&config, None).map(drop).unwrap_err().to_string()
    };
    assert!(judge(|config| config.template = "{{ answer }}".into()).ends_with("found answer"));
    assert!(judge(|config| config.template = "{% if %}".into()).starts_with("judge.template"));
    assert!(judge(|config| config.system = Some("{{".into())).starts_with("judge.system"));
    for temperature in [f64::NAN, f64::INFINITY, -1.0] {
        let config = JudgeConfig { temperature: Some(temperature), ..config("http://judge/v1") };
        let error = Judge::new(&config, None).map(drop).unwrap_err().to_string();
        assert!(error.starts_with("judge.temperature: expected a finite number, 0 or more"), "{error}");
    }
    assert!(judge(|config| config.url = "https://judge/v1".into()).starts_with("judge.url"));
    let looped = "{% for i in range(2) %}{{ i }}{{ response }}{% endfor %}";
    let mut fine = config("http://judge/v1/chat/completions/");
    fine.template = looped.into();
    let judge = Judge::new(&fine, None).unwrap();
    assert_eq!(judge.endpoint.what(), "judge http://judge/v1/chat/completions");
    assert_eq!(judge.request(&job("r")).unwrap()["messages"][1]["content"], "0r1r");
}

#[test]
fn a_template_that_does_not_suit_the_row_is_an_error() {
    let mut missing = config("http://judge/v1");
    missing.template = "{{ extra.nothing.at_all }}".into();
    let error = Judge::new(&missing, None).unwrap().request(&job("x")).unwrap_err();
    assert!(matches!(error, RewardError::Misconfigured { key: "judge.template", .. }), "{error}");
}

#[test]
fn long_texts_take_little_time() {
    let verdict = Arc::new(in_range(0.0, 1.0));
    let started = stopwatch();
    for piece in ["[[", "]]", "[[0.5]]", "[[[]"] {
        // Only the time counts here, not the result.
        drop(verdict.read("judge", &piece.repeat(1 << 18)));
    }
    assert!(started() < Duration::from_secs(10), "{:?}", started());
}

#[expect(clippy::disallowed_methods, reason = "real work is timed, and no runtime is there to pause")]
fn stopwatch() -> impl Fn() -> Duration {
    let started = std::time::Instant::now();
    move || started.elapsed()
}

proptest! {
    #[test]
    fn any_text_has_a_sound_score_or_an_error(text in "(\\[\\[|\\]\\]|[0-9.]|verdict: |.){0,20}") {
        for verdict in [in_range(0.0, 10.0), verdict(|_| {}).unwrap()] {
            if let Ok(score) = verdict.read("judge", &text) {
                prop_assert_eq!(crate::invariants::score_is_sound(&score), Ok(()));
            }
        }
    }
}
