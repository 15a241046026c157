//! Scores of finished samples, away from the threads that serve sockets.
//!
//! Scoring in this process is processor work: it runs on the blocking pool, in as many places as the recipe
//! gives it, and each grading has a deadline. On virtual time it runs in the worker's own task instead, so
//! that the order of events is a pure function of the seed. A reward from outside is only awaited here: its
//! runner bounds it, repeats it, waits out an outage and gives it up. A group that is cut off drops the wait,
//! and with it the work.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rolldock_reward::{
    GateRow, Overlong, Parts, RewardError, RewardHealth, RewardJob, RewardRunner, Score, ScoreInput, Scorer,
};
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;

use crate::data::{Prompt, TextCodec};
use crate::engine::SampleOutput;
use crate::scope::Scope;

/// The grade of a sample.
#[derive(Debug, Clone, PartialEq)]
pub struct Grade {
    /// The scorer's number.
    pub score: f32,
    /// Whether the answer is right, 1 or 0.
    pub acc: f32,
    /// The penalty for length; zero or negative.
    pub overlong_penalty: f32,
    /// The answer the scorer found.
    pub prediction: Option<String>,
    /// The scores of which `score` is made, by name; empty if it is not made of others.
    pub parts: Parts,
}

impl Grade {
    fn new(score: Score, overlong_penalty: f32) -> Self {
        Self {
            score: score.score as f32,
            acc: score.acc as f32,
            overlong_penalty,
            prediction: score.pred,
            parts: score.parts,
        }
    }
}

/// Grades samples; it is called from many threads.
pub trait Grader: Send + Sync + 'static {
    /// Grades a sample. An error is the reason why there is no grade, and the sample fails.
    fn grade(&self, prompt: &Prompt, output: &SampleOutput) -> Result<Grade, String>;
}

fn penalty(overlong: Option<&Overlong>, output: &SampleOutput) -> f32 {
    overlong.map_or(0.0, |overlong| overlong.penalty(output.response_ids.len() as u32) as f32)
}

/// Decodes the response, as much of it as the scorer reads, and scores the text.
pub struct TextGrader {
    codec: Arc<TextCodec>,
    scorer: Arc<dyn Scorer>,
    overlong: Option<Overlong>,
}

impl TextGrader {
    /// A grader with a scorer and optional overlong shaping.
    pub fn new(codec: Arc<TextCodec>, scorer: Arc<dyn Scorer>, overlong: Option<Overlong>) -> Self {
        Self { codec, scorer, overlong }
    }
}

impl Grader for TextGrader {
    fn grade(&self, prompt: &Prompt, output: &SampleOutput) -> Result<Grade, String> {
        let response = match self.scorer.tail_code_points() {
            Some(code_points) => self.codec.decode_tail(&output.response_ids, code_points),
            None => self.codec.decode(&output.response_ids),
        };
        let input = ScoreInput {
            response: &response,
            ground_truth: &prompt.answer,
            data_source: &prompt.source,
            extra: None,
        };
        let score = self.scorer.score(&input).map_err(|error| error.to_string())?;
        Ok(Grade::new(score, penalty(self.overlong.as_ref(), output)))
    }
}

/// Grades by a reward runner outside of this process.
#[derive(Clone)]
pub struct OutsideGrader {
    /// Decodes the responses.
    pub codec: Arc<TextCodec>,
    /// The runner that scores; it keeps the deadline.
    pub runner: Arc<dyn RewardRunner>,
    /// Shaping of the score.
    pub overlong: Option<Overlong>,
}

impl OutsideGrader {
    /// Makes the job of a sample. This is processor work, because it decodes the response.
    fn job(&self, prompt: &Prompt, output: &SampleOutput) -> RewardJob {
        reward_job(prompt, self.codec.decode(&output.response_ids).into())
    }
}

/// The job of a response to `prompt`.
fn reward_job(prompt: &Prompt, response: Arc<str>) -> RewardJob {
    RewardJob {
        response,
        ground_truth: Arc::clone(&prompt.answer),
        data_source: Arc::clone(&prompt.source),
        prompt: Arc::clone(&prompt.text),
        extra: Arc::new(prompt.fields.extra_info()),
    }
}

/// A job that finds out whether a reward answers: its response is the right answer to `prompt`.
pub fn probe_job(prompt: &Prompt) -> RewardJob {
    reward_job(prompt, Arc::clone(&prompt.answer))
}

/// What a gate outside of this process is told about the row of `prompt`.
pub fn gate_row(prompt: &Prompt) -> GateRow {
    GateRow {
        ground_truth: Arc::clone(&prompt.answer),
        data_source: Arc::clone(&prompt.source),
        prompt: Arc::clone(&prompt.text),
        row: prompt.fields.extra_info(),
    }
}

/// The reason why there is no grade.
#[derive(Debug)]
pub(crate) enum Ungraded {
    /// The grading failed; the reason.
    Failed(String),
    /// The cut, or the end of the run, came before the score; the sample is returned as it was.
    Cut(SampleOutput),
}

/// Where grading runs.
#[derive(Clone)]
pub enum Grading {
    /// On the blocking pool, at most this many at a time.
    Pool {
        /// The grader.
        grader: Arc<dyn Grader>,
        /// Concurrent gradings.
        places: usize,
    },
    /// In the worker's own task; this is for virtual time.
    Inline(Arc<dyn Grader>),
    /// Outside of this process; at most this many responses are decoded at a time.
    Outside {
        /// The grader.
        grader: OutsideGrader,
        /// Concurrent decodings.
        places: usize,
    },
}

/// The grading of a run.
pub(crate) struct Grades {
    grading: Grading,
    places: Arc<Semaphore>,
    deadline: Duration,
    scope: Scope,
    /// The reason why the run has to end: a reward failed, and its rule ends the run.
    ending: Mutex<Option<String>>,
    pub(crate) has_ended: CancellationToken,
}

impl Grades {
    pub(crate) fn new(grading: Grading, deadline: Duration, scope: Scope) -> Self {
        let places = match &grading {
            Grading::Pool { places, .. } | Grading::Outside { places, .. } => (*places).max(1),
            Grading::Inline(_) => 0,
        };
        Self {
            grading,
            places: Arc::new(Semaphore::new(places)),
            deadline,
            scope,
            ending: Mutex::new(None),
            has_ended: CancellationToken::new(),
        }
    }

    /// The reason why the run has to end, once [`Self::has_ended`] is cancelled.
    pub(crate) fn ending(&self) -> Option<String> {
        self.ending.lock().clone()
    }

    /// Grades `output` and gives it back. Once `cut` ends, the call no longer waits for a runner outside.
    ///
    /// Cancel-safe: a grading here that has begun ends on its own, unread; one outside is cancelled.
    pub(crate) async fn grade(
        &self,
        prompt: &Arc<Prompt>,
        output: SampleOutput,
        cut: impl Future<Output = ()>,
    ) -> Result<(SampleOutput, Grade), Ungraded> {
        match &self.grading {
            Grading::Inline(grader) => {
                let grade = grader.grade(prompt, &output).map_err(Ungraded::Failed)?;
                Ok((output, grade))
            }
            Grading::Pool { grader, .. } => {
                let grader = Arc::clone(grader);
                let graded =
                    self.in_place(prompt, output, move |prompt, output| grader.grade(prompt, output));
                let (output, grade) = self.within_deadline(graded).await.map_err(Ungraded::Failed)?;
                Ok((output, grade.map_err(Ungraded::Failed)?))
            }
            Grading::Outside { grader, .. } => {
                let asking = grader.clone();
                let decoded = self.in_place(prompt, output, move |prompt, output| asking.job(prompt, output));
                let (output, job) = self.within_deadline(decoded).await.map_err(Ungraded::Failed)?;
                let score = tokio::select! {
                    biased;
                    score = grader.runner.score(&job) => score,
                    () = cut => return Err(Ungraded::Cut(output)),
                };
                let score = match score {
                    Ok(score) => score,
                    // The sample is not at fault: when the run is resumed, its grading is repeated.
                    Err(error) if error.ends_run() => {
                        self.end(&error);
                        return Err(Ungraded::Cut(output));
                    }
                    Err(error) => return Err(Ungraded::Failed(error.to_string())),
                };
                let penalty = penalty(grader.overlong.as_ref(), &output);
                Ok((output, Grade::new(score, penalty)))
            }
        }
    }

    /// Does processor work on the blocking pool when there is a place for it.
    async fn in_place<T: Send + 'static>(
        &self,
        prompt: &Arc<Prompt>,
        output: SampleOutput,
        work: impl FnOnce(&Prompt, &SampleOutput) -> T + Send + 'static,
    ) -> Result<(SampleOutput, T), String> {
        let place = Arc::clone(&self.places).acquire_owned().await.map_err(|error| error.to_string())?;
        let prompt = Arc::clone(prompt);
        let working = self.scope.spawn_blocking("grading", move || {
            let made = work(&prompt, &output);
            drop(place);
            (output, made)
        });
        working.await.map_err(|error| format!("the scorer panicked: {error}"))
    }

    async fn within_deadline<T>(&self, work: impl Future<Output = Result<T, String>>) -> Result<T, String> {
        let timed = tokio::time::timeout(self.deadline, work).await;
        timed.map_err(|_| format!("no score within reward_s={}", self.deadline.as_secs_f64()))?
    }

    /// The health of a reward outside of this process, if its runner watches it.
    pub(crate) fn health(&self) -> Option<watch::Receiver<RewardHealth>> {
        match &self.grading {
            Grading::Outside { grader, .. } => grader.runner.health(),
            Grading::Pool { .. } | Grading::Inline(_) => None,
        }
    }

    /// Ends the run because of `error`, unless an earlier one has ended it.
    pub(crate) fn end(&self, error: &RewardError) {
        self.ending.lock().get_or_insert_with(|| error.to_string());
        self.has_ended.cancel();
    }
}
