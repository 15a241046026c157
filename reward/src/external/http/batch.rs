//! Combines jobs that arrive at nearly the same time into one request.
//!
//! The first job of a batch starts a timer. The batch is sent when the timer ends or when the batch is full.
//! A separate task sends the batch, because it does not belong to a single job. When one job is dropped, the
//! others still get their answers. When all jobs are dropped, the request is dropped too.

use std::sync::Arc;
use std::time::Duration;

use futures::future::{BoxFuture, join_all};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::oneshot;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::Endpoint;
use crate::external::answer::{nonsense, question, read_json, score_of};
use crate::external::{RewardJob, RewardRunner};
use crate::tasks;
use crate::{RewardError, Score};

/// A runner that sends a batch of jobs with each request.
pub(crate) struct HttpBatch(Arc<Batcher>);

struct Batcher {
    endpoint: Endpoint,
    batch_max: usize,
    batch_wait: Duration,
    open: Mutex<Batch>,
    tracker: TaskTracker,
    token: CancellationToken,
}

/// The batch that new jobs join. Whenever the lock is free, the batch is shorter than `batch_max`.
#[derive(Default)]
struct Batch {
    number: u64,
    items: Vec<Item>,
}

struct Item {
    question: Value,
    reply: oneshot::Sender<Result<Score, RewardError>>,
}

impl HttpBatch {
    /// A runner that gathers at most `batch_max` jobs for at most `batch_wait`. Its tasks run on `tracker`
    /// and end when `token` is cancelled. Errors name the key `http.url`.
    pub(crate) fn new(
        url: &str,
        api_key: Option<String>,
        batch_max: usize,
        batch_wait: Duration,
        tracker: TaskTracker,
        token: CancellationToken,
    ) -> Result<Self, RewardError> {
        let endpoint = Endpoint::new("reward server", "http.url", url, api_key)?;
        Ok(Self(Arc::new(Batcher {
            endpoint,
            batch_max: batch_max.max(1),
            batch_wait,
            open: Mutex::default(),
            tracker,
            token,
        })))
    }
}

impl RewardRunner for HttpBatch {
    fn score<'a>(&'a self, job: &'a RewardJob) -> BoxFuture<'a, Result<Score, RewardError>> {
        Box::pin(async move {
            let answer = self.0.join(job);
            // The sender is dropped only when the token has ended the task.
            answer.await.unwrap_or(Err(RewardError::Cancelled))
        })
    }
}

impl Batcher {
    fn join(self: &Arc<Self>, job: &RewardJob) -> oneshot::Receiver<Result<Score, RewardError>> {
        let (reply, answer) = oneshot::channel();
        let question = question(0, job);
        let mut open = self.open.lock();
        open.items.push(Item { question, reply });
        if open.items.len() >= self.batch_max {
            let full = open.take();
            drop(open);
            self.start(|batcher| async move { batcher.send(full).await });
            return answer;
        }
        if open.items.len() == 1 {
            let number = open.number;
            drop(open);
            self.start(|batcher| async move {
                sleep(batcher.batch_wait).await;
                let items = batcher.take_if_open(number);
                batcher.send(items).await;
            });
        }
        answer
    }

    fn start<F: Future<Output = ()> + Send + 'static>(self: &Arc<Self>, work: impl FnOnce(Arc<Self>) -> F) {
        let token = self.token.clone();
        let work = work(Arc::clone(self));
        tasks::spawn(&self.tracker, "reward batch", async move {
            tokio::select! {
                biased;
                () = token.cancelled() => {}
                () = work => {}
            }
        });
    }

    fn take_if_open(&self, number: u64) -> Vec<Item> {
        let mut open = self.open.lock();
        if open.number == number { open.take() } else { Vec::new() }
    }

    async fn send(&self, mut items: Vec<Item>) {
        items.retain(|item| !item.reply.is_closed());
        if items.is_empty() {
            return;
        }
        let (questions, mut replies): (Vec<_>, Vec<_>) =
            items.into_iter().map(|item| (item.question, item.reply)).unzip();
        let all_dropped = join_all(replies.iter_mut().map(oneshot::Sender::closed));
        let results = tokio::select! {
            biased;
            _ = all_dropped => return,
            results = self.ask(questions) => results,
        };
        for (reply, result) in replies.into_iter().zip(results) {
            // Sending fails only when the job was dropped meanwhile.
            drop(reply.send(result));
        }
    }

    /// Asks the server; returns one result for each question.
    async fn ask(&self, questions: Vec<Value>) -> Vec<Result<Score, RewardError>> {
        let count = questions.len();
        let answers = match self.endpoint.post(&json!({ "items": questions })).await {
            Ok(bytes) => self.read(&bytes, count),
            Err(error) => Err(error),
        };
        match answers {
            Ok(answers) => answers.iter().map(|answer| score_of(self.endpoint.what(), answer)).collect(),
            Err(error) => vec![Err(error); count],
        }
    }

    fn read(&self, bytes: &[u8], count: usize) -> Result<Vec<Value>, RewardError> {
        let what = self.endpoint.what();
        let answers = match read_json(what, bytes)? {
            Value::Array(answers) => answers,
            Value::Object(mut fields) => match fields.remove("scores") {
                Some(Value::Array(answers)) => answers,
                _ => return Err(nonsense(what, "expected \"scores\" to be a list".into(), bytes)),
            },
            _ => return Err(nonsense(what, "expected a list of scores".into(), bytes)),
        };
        if answers.len() != count {
            let reason = format!("expected scores={count}, found scores={}", answers.len());
            return Err(nonsense(what, reason, bytes));
        }
        Ok(answers)
    }
}

impl Batch {
    fn take(&mut self) -> Vec<Item> {
        self.number += 1;
        std::mem::take(&mut self.items)
    }
}
