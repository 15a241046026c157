//! Which server the turns of a trajectory go to.

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use reqwest::Response;
use rolldock_trajectory::Template;
use serde_json::{Value, json};

use super::engine::{Engine, Letters};
use super::hosted::Run;
use super::rig::{read, said, user};
use crate::Limits;

/// The permits of each server.
const PERMITS: u32 = 4;

/// Two servers.
struct Pair {
    run: Run,
    engines: [Engine; 2],
}

impl Pair {
    async fn new() -> Self {
        let run = Run::over(|_| (), &[PERMITS; 2]).await;
        let engines = [run.engine.clone(), run.others[0].clone()];
        Self { run, engines }
    }

    fn running(&self) -> [usize; 2] {
        [0, 1].map(|at| self.engines[at].running())
    }

    /// The prompts that an engine was sent.
    fn prompts(&self, at: usize) -> Vec<String> {
        self.engines[at].prompts().iter().map(|ids| Letters.decode(ids)).collect()
    }
}

/// Adds an answer, and the next message of the user, to a conversation.
async fn go_on(messages: &mut Vec<Value>, answer: Response) {
    let (status, body) = read(answer).await;
    assert_eq!(status, 200, "{body}");
    messages.extend([said(&body), user("go on")]);
}

/// Two trajectories that begin at once have a server each, and all their turns go there.
#[tokio::test]
async fn turns_go_to_the_server_of_their_trajectory() {
    let pair = Pair::new().await;
    pair.engines.iter().for_each(Engine::hold);
    let sessions = ["one", "two"].map(|uid| pair.run.begin(uid, Limits::default()));
    let mut talks = ["one", "two"].map(|text| vec![user(text)]);
    let begun = |count: usize| pair.running().iter().sum::<usize>() == count;
    let bases = sessions.each_ref().map(|session| session.base_url());
    let first = pair.run.chat(&bases[0], json!(talks[0]));
    let second = async {
        pair.run.until("the first call", || begun(1)).await;
        pair.run.chat(&bases[1], json!(talks[1])).await
    };
    let released = async {
        pair.run.until("both calls", || begun(2)).await;
        assert_eq!(pair.running(), [1, 1], "a server has both trajectories, and the other one has none");
        pair.engines.iter().for_each(Engine::go);
    };
    let (first, second, ()) = futures::join!(first, second, released);
    for (at, answer) in [first, second].into_iter().enumerate() {
        go_on(&mut talks[at], answer).await;
    }
    for turn in 0..6 {
        let at = turn % 2;
        let answer = pair.run.chat(&bases[at], json!(talks[at])).await;
        go_on(&mut talks[at], answer).await;
    }
    for at in [0, 1] {
        let prompts = pair.prompts(at);
        let own = prompts[0].split('\u{3}').next().unwrap();
        assert_eq!(prompts.len(), 4, "{prompts:?}");
        assert!(prompts.iter().all(|prompt| prompt.starts_with(own)), "{prompts:?}");
    }
}

/// A trajectory leaves a server that is too full, and stays on its new server.
#[tokio::test]
async fn a_trajectory_leaves_a_server_that_is_full() {
    let pair = Pair::new().await;
    let session = pair.run.begin("one", Limits::default());
    let base = session.base_url();
    assert_eq!(pair.run.chat(&base, json!([user("x")])).await.status(), 200);
    let home = usize::from(pair.prompts(0).is_empty());
    pair.engines[home].hold();
    let mut held = FuturesUnordered::new();
    // Each call either waits at the full server or is answered by the other one.
    let mut sent = 0;
    while pair.prompts(1 - home).is_empty() {
        assert!(sent <= PERMITS, "calls wait for a full server, and another one is idle");
        sent += 1;
        held.push(pair.run.chat(&base, json!([user(&sent.to_string())])));
        let begun = held.len();
        let waits = || pair.running()[home] == begun || !pair.prompts(1 - home).is_empty();
        let waiting = pair.run.until("a place of the call", waits);
        tokio::select! {
            () = waiting => {}
            answer = held.next() => assert_eq!(answer.unwrap().status(), 200),
        }
    }
    assert!(pair.running()[home] > 0, "the trajectory left an idle server");
    pair.engines[home].go();
    while let Some(answer) = held.next().await {
        assert_eq!(answer.status(), 200);
    }
    let before = pair.prompts(1 - home).len();
    assert_eq!(pair.run.chat(&base, json!([user("y")])).await.status(), 200);
    assert_eq!(pair.prompts(1 - home).len(), before + 1, "the trajectory went back");
}
