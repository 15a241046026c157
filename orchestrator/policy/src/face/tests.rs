#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use futures::FutureExt;
use futures::future::{self, BoxFuture};
use reqwest::{Client, Response};

use super::*;
use crate::{
    Announcements, Applied, ApplyVersion, FollowVersion, PolicyMode, PolicyState, PolicyTerms, SourcesConfig,
    UpdateProgress,
};
use rolldock_listener::ConnectionLimits;
use rolldock_scope::Scope;

/// A fleet that is updated immediately, except for one server that keeps the old version.
struct Fleet;

impl ApplyVersion for Fleet {
    fn apply<'a>(&'a self, _announcement: &'a Announcement) -> BoxFuture<'a, Applied> {
        future::ready(Applied::Asked { updated: 3, missed: Vec::new() }).boxed()
    }

    fn progress(&self) -> UpdateProgress {
        UpdateProgress { phase: None, behind: vec!["slow".to_owned()] }
    }
}

struct Run;

impl FollowVersion for Run {
    fn publish<'a>(&'a self, _announcement: &'a Announcement) -> BoxFuture<'a, ()> {
        future::ready(()).boxed()
    }
}

struct Rig {
    scope: Scope,
    updates: Updates,
    base: String,
    client: Client,
    _sources: Announcements,
}

impl Rig {
    /// The mode updates servers only when the test calls `at_boundary`.
    async fn new(token: Option<&str>) -> Self {
        Self::with_limits(token, ConnectionLimits::default()).await
    }

    async fn with_limits(token: Option<&str>, connections: ConnectionLimits) -> Self {
        let scope = Scope::new();
        let terms = PolicyTerms { mode: PolicyMode::OneStepOff, max_staleness: 2 };
        let state = PolicyState::new(terms, 0);
        let updates = Updates::start(state, Arc::new(Fleet), Arc::new(Run), &scope).await;
        let config = SourcesConfig {
            listen: Some(([127, 0, 0, 1], 0).into()),
            token: token.map(str::to_owned),
            connections,
            ..SourcesConfig::default()
        };
        let sources = Announcements::open(config, &updates, &scope).await.unwrap();
        let base = format!("http://{}/v1/policy", sources.address().unwrap());
        let client = Client::builder().no_proxy().build().unwrap();
        Self { scope, updates, base, client, _sources: sources }
    }

    async fn announce(&self, body: impl Into<reqwest::Body>) -> (u16, Value) {
        read(self.client.post(format!("{}/announce", self.base)).body(body).send().await.unwrap()).await
    }

    async fn get(&self, rest: &str) -> (u16, Value) {
        read(self.client.get(format!("{}{rest}", self.base)).send().await.unwrap()).await
    }
}

async fn read(response: Response) -> (u16, Value) {
    let status = response.status().as_u16();
    (status, serde_json::from_slice(&response.bytes().await.unwrap()).unwrap())
}

fn code(answer: &(u16, Value)) -> (u16, &str) {
    (answer.0, answer.1["error"]["code"].as_str().unwrap())
}

#[tokio::test]
async fn an_announcement_is_taken_once_and_repeated_without_harm() {
    let rig = Rig::new(None).await;
    let seventh = r#"{"version": 7, "label": "step-7", "path": "/c/step-7", "payload": {"a": [1, null]}}"#;
    let (status, taken) = rig.announce(seventh).await;
    assert_eq!((status, &taken["version"], &taken["announced"]), (202, &json!(0), &json!(7)));
    assert_eq!(taken["state"], "pending");
    assert_eq!(rig.announce(seventh).await.0, 200);

    let other = rig.announce(r#"{"version": 7, "path": "/elsewhere"}"#).await;
    assert_eq!(code(&other), (409, "differs"));
    let older = rig.announce(r#"{"version": 6}"#).await;
    assert_eq!(code(&older), (409, "not_newer"));
    let numbers = [&older.1["error"]["version"], &older.1["error"]["announced"]];
    assert_eq!(numbers, [&json!(6), &json!(7)]);

    assert_eq!(rig.updates.at_boundary().await.unwrap(), 7);
    let expected = json!({
        "version": 7, "announced": 7, "state": "idle", "phase": null, "behind": ["slow"], "failure": null,
        "mode": "one_step_off", "max_staleness": 2
    });
    assert_eq!(rig.get("").await, (200, expected));
    assert_eq!(rig.announce(seventh).await.0, 200, "it is still known");
}

#[tokio::test]
async fn garbage_is_refused_in_words() {
    let rig = Rig::new(None).await;
    for (body, expected, words) in [
        ("", (400, "bad_announcement"), "EOF"),
        ("{\"version\": 7", (400, "bad_announcement"), "EOF"),
        (" [7]", (400, "bad_announcement"), "it is not an object"),
        ("{}", (400, "bad_announcement"), "missing field `version`"),
        (r#"{"version": -1}"#, (400, "bad_announcement"), "-1"),
        (r#"{"version": "7"}"#, (400, "bad_announcement"), "string \"7\""),
        (r#"{"version": 7, "lable": "7"}"#, (400, "bad_announcement"), "unknown field `lable`"),
        (
            r#"{"version": 7, "label": "final"}"#,
            (400, "bad_label"),
            "label=\"final\" does not end in version=7",
        ),
        (r#"{"version": 18446744073709551615}"#, (400, "version_too_large"), "18446744073709551615"),
    ] {
        let answer = rig.announce(body).await;
        assert_eq!(code(&answer), expected, "{body}");
        let message = answer.1["error"]["message"].as_str().unwrap();
        assert!(message.contains(words), "{body}: {message}");
    }
    let long = rig.announce(vec![b' '; ANNOUNCEMENT_BYTES_MAX + 1]).await;
    assert_eq!(code(&long), (413, "too_large"));
    assert_eq!(code(&rig.announce(vec![0xff; 16]).await), (400, "bad_announcement"));
    assert_eq!(rig.updates.state().announced(), 0);

    assert_eq!(code(&rig.get("/announce").await), (405, "method_not_allowed"));
    assert_eq!(code(&rig.get("/versions").await), (404, "not_found"));
    for query in [
        "",
        "?version=x",
        "?version=1&timeout_s=-1",
        "?version=1&timeout_s=nan",
        "?version=1&timeout_s=1e9",
        "?v=1",
    ] {
        assert_eq!(code(&rig.get(&format!("/wait{query}")).await), (400, "bad_query"), "{query}");
    }
}

#[tokio::test]
async fn a_call_waits_until_servers_have_the_version_or_its_timeout() {
    let rig = Rig::new(None).await;
    assert_eq!(rig.get("/wait?version=0").await.0, 200);
    let late = rig.get("/wait?version=7&timeout_s=0.05").await;
    assert_eq!(code(&late), (408, "not_yet"));
    let numbers = [&late.1["error"]["wanted"], &late.1["error"]["version"]];
    assert_eq!(numbers, [&json!(7), &json!(0)]);

    let waiting = rig.get("/wait?version=7&timeout_s=60");
    let updating = async {
        assert_eq!(rig.announce(r#"{"version": 8}"#).await.0, 202);
        assert_eq!(code(&rig.get("/wait?version=8&timeout_s=0").await), (408, "not_yet"));
        rig.updates.at_boundary().await.unwrap()
    };
    let ((status, answer), served) = tokio::join!(waiting, updating);
    assert_eq!((status, &answer["version"], served), (200, &json!(8), 8), "a later one will do");
}

#[tokio::test]
async fn the_end_of_the_run_answers_waiting_requests() {
    let rig = Rig::new(None).await;
    let waiting = rig.get("/wait?version=7&timeout_s=60");
    let ending = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        rig.scope.close(Duration::from_secs(10)).await
    };
    let (answer, has_closed) = tokio::join!(waiting, ending);
    assert_eq!(code(&answer), (503, "ended"));
    assert!(has_closed, "no call holds the end up");
}

#[tokio::test]
async fn every_call_needs_the_token() {
    let rig = Rig::new(Some("hush-1234")).await;
    let calls = || {
        [
            rig.client.get(&rig.base),
            rig.client.get(format!("{}/wait?version=0", rig.base)),
            rig.client.get(format!("{}/nowhere", rig.base)),
            rig.client.post(format!("{}/announce", rig.base)).body(r#"{"version": 1}"#),
        ]
    };
    for (at, wrong) in ["", "hush-123", "hush-12345", "HUSH-1234"].into_iter().enumerate() {
        for call in calls() {
            let call = if at == 0 { call } else { call.bearer_auth(wrong) };
            assert_eq!(code(&read(call.send().await.unwrap()).await), (401, "unauthorized"), "{wrong:?}");
        }
    }
    assert_eq!(rig.updates.state().announced(), 0);
    let mut statuses = Vec::new();
    for call in calls() {
        statuses.push(call.bearer_auth("hush-1234").send().await.unwrap().status().as_u16());
    }
    assert_eq!(statuses, [200, 200, 404, 202]);
}

#[tokio::test]
async fn an_address_that_is_taken_is_an_error_that_names_it() {
    let rig = Rig::new(None).await;
    let taken = rig.base.trim_start_matches("http://").trim_end_matches("/v1/policy").parse().unwrap();
    let config = SourcesConfig { listen: Some(taken), ..SourcesConfig::default() };
    let error = Announcements::open(config, &rig.updates, &rig.scope).await.unwrap_err().to_string();
    assert!(error.starts_with(&format!("cannot listen for policy versions at address={taken}: ")), "{error}");
}

#[tokio::test]
async fn idle_connections_without_a_token_keep_no_trainer_out() {
    let limits =
        ConnectionLimits { max: Some(8), unauthenticated_max: Some(4), ..ConnectionLimits::default() };
    let rig = Rig::with_limits(Some("hush"), limits).await;
    let address = rig.base.trim_start_matches("http://").trim_end_matches("/v1/policy").to_owned();
    let mut strangers = Vec::new();
    for _ in 0..40 {
        strangers.push(tokio::net::TcpStream::connect(&address).await.unwrap());
    }
    let asking = rig.client.get(&rig.base).bearer_auth("hush").timeout(Duration::from_secs(1));
    assert_eq!(asking.send().await.unwrap().status(), 200);
}
