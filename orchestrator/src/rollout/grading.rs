//! The grading of finished samples, away from the I/O threads.
//!
//! Scoring in this process is CPU work. It runs on the blocking pool, with the concurrency that the recipe
//! sets, and each grading has a deadline. On virtual time the worker's task does the scoring itself, so that
//! the order of events is a pure function of the seed. For a reward outside of this process, this module only
//! awaits the runner. The runner sets the time limit of a grading, repeats failed gradings, waits until an
//! outage ends, and decides when to give up. When a group is cut off, the wait is dropped and the runner's
//! work is cancelled.

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
    /// The score that the scorer returned.
    pub score: f32,
    /// The accuracy of the answer, from 0 to 1.
    pub acc: f32,
    /// The penalty for length; zero or negative.
    pub overlong_penalty: f32,
    /// The answer that the scorer found in the response.
    pub prediction: Option<String>,
    /// The partial scores from which `score` was computed, by name. Empty if there are none.
    pub parts: Parts,
}

impl Grade {
    /// The grade of a sample that has a reward of its own. The reward is also its accuracy, limited to 0..=1.
    pub(crate) fn of_reward(reward: f32, overlong_penalty: f32) -> Self {
        Self {
            score: reward,
            acc: reward.clamp(0.0, 1.0),
            overlong_penalty,
            prediction: None,
            parts: Parts::default(),
        }
    }

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

/// Grades samples. It is called from many threads.
pub trait Grader: Send + Sync + 'static {
    /// Grades a sample. The error is the reason why there is no grade; the sample then fails.
    fn grade(&self, prompt: &Prompt, output: &SampleOutput) -> Result<Grade, String>;

    /// The penalty for a length of this many sampled tokens; zero or negative.
    fn overlong_penalty(&self, _tokens: u32) -> f32 {
        0.0
    }
}

fn penalty(overlong: Option<&Overlong>, tokens: u32) -> f32 {
    overlong.map_or(0.0, |overlong| overlong.penalty(tokens) as f32)
}

/// Decodes the part of a response that the scorer reads, and scores the text.
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
        Ok(Grade::new(score, self.overlong_penalty(output.response_ids.len() as u32)))
    }

    fn overlong_penalty(&self, tokens: u32) -> f32 {
        penalty(self.overlong.as_ref(), tokens)
    }
}

/// Grades by a reward runner outside of this process.
#[derive(Clone)]
pub struct OutsideGrader {
    /// Decodes the responses.
    pub codec: Arc<TextCodec>,
    /// The runner that scores. It enforces the deadline.
    pub runner: Arc<dyn RewardRunner>,
    /// Shaping of the score.
    pub overlong: Option<Overlong>,
}

impl OutsideGrader {
    /// Makes the job of a sample. This is CPU work, because it decodes the response.
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

/// A job that tests whether a reward answers. The job's response is the right answer to `prompt`.
pub fn probe_job(prompt: &Prompt) -> RewardJob {
    reward_job(prompt, Arc::clone(&prompt.answer))
}

/// The data of the row of `prompt` that a gate outside of this process gets.
pub fn gate_row(prompt: &Prompt) -> GateRow {
    GateRow {
        ground_truth: Arc::clone(&prompt.answer),
        data_source: Arc::clone(&prompt.source),
        prompt: Arc::clone(&prompt.text),
        row: prompt.fields.extra_info(),
    }
}

/// Why a sample has no grade.
#[derive(Debug)]
pub(crate) enum Ungraded {
    /// The grading failed, for this reason.
    Failed(String),
    /// A cut or the end of the run came before the score. The sample is returned unchanged.
    Cut(SampleOutput),
}

/// Where grading runs.
#[derive(Clone)]
pub enum Grading {
    /// On the blocking pool, at most this many at a time.
    Pool {
        /// The grader.
        grader: Arc<dyn Grader>,
        /// The maximum number of concurrent gradings.
        places: usize,
    },
    /// In the worker's own task, for virtual time.
    Inline(Arc<dyn Grader>),
    /// Outside of this process; at most this many responses are decoded at a time.
    Outside {
        /// The grader.
        grader: OutsideGrader,
        /// The maximum number of concurrent decodings.
        places: usize,
    },
}

/// The grading of a run.
pub(crate) struct Grades {
    grading: Grading,
    places: Arc<Semaphore>,
    deadline: Duration,
    scope: Scope,
    /// The reason why the run has to end: a reward failed, and the recipe ends the run in this case.
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

    /// Grades `output` and returns it with its grade. When `cut` completes, the call stops waiting for a
    /// runner outside of this process.
    ///
    /// Cancel-safe. A grading in this process that has begun runs to its end, and its result is dropped. A
    /// grading outside of this process is cancelled.
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
                    // The sample did not fail. Its grading is repeated when the run is resumed.
                    Err(error) if error.ends_run() => {
                        self.end(&error);
                        return Err(Ungraded::Cut(output));
                    }
                    Err(error) => return Err(Ungraded::Failed(error.to_string())),
                };
                let penalty = penalty(grader.overlong.as_ref(), output.response_ids.len() as u32);
                Ok((output, Grade::new(score, penalty)))
            }
        }
    }

    /// The penalty for a sample of this many sampled tokens; zero or negative.
    pub(crate) fn overlong_penalty(&self, tokens: u32) -> f32 {
        match &self.grading {
            Grading::Inline(grader) | Grading::Pool { grader, .. } => grader.overlong_penalty(tokens),
            Grading::Outside { grader, .. } => penalty(grader.overlong.as_ref(), tokens),
        }
    }

    /// Does CPU work on the blocking pool, after a wait for one of `places`.
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

    /// The health of a reward outside of this process, if its runner reports it.
    pub(crate) fn health(&self) -> Option<watch::Receiver<RewardHealth>> {
        match &self.grading {
            Grading::Outside { grader, .. } => grader.runner.health(),
            Grading::Pool { .. } | Grading::Inline(_) => None,
        }
    }

    /// Ends the run because of `error`, unless an earlier error has ended it.
    pub(crate) fn end(&self, error: &RewardError) {
        self.ending.lock().get_or_insert_with(|| error.to_string());
        self.has_ended.cancel();
    }
}
