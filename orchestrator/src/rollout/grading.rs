//! Scores of finished samples, away from the threads that serve sockets.
//!
//! Scoring is processor work: it runs on the blocking pool, at most as many at a time as there are places, each
//! with a deadline. Where the samples of a run are on virtual time it runs in line instead, so that the order of
//! events is a pure function of the seed.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;

use crate::data::{Prompt, TextCodec};
use crate::engine::SampleOutput;
use crate::scope::Scope;
use rolldock_reward::{Overlong, ScoreInput, Scorer};

/// What a sample is worth.
#[derive(Debug, Clone, PartialEq)]
pub struct Grade {
    /// The scorer's number.
    pub score: f32,
    /// Whether the answer is right, 1 or 0.
    pub acc: f32,
    /// Zero or negative.
    pub overlong_penalty: f32,
    /// The answer the scorer found.
    pub prediction: Option<String>,
}

/// Grades one sample; called from many threads.
pub trait Grader: Send + Sync + 'static {
    /// The grade, or why there is none (the sample then fails).
    fn grade(&self, prompt: &Prompt, output: &SampleOutput) -> Result<Grade, String>;
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
        let overlong_penalty = self
            .overlong
            .as_ref()
            .map_or(0.0, |overlong| overlong.penalty(output.response_ids.len() as u32) as f32);
        Ok(Grade {
            score: score.score as f32,
            acc: score.acc as f32,
            overlong_penalty,
            prediction: score.pred,
        })
    }
}

/// Where grading runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GradingMode {
    /// On the blocking pool, at most so many at a time.
    Pool {
        /// Concurrent gradings.
        places: usize,
    },
    /// In the worker's own task: for virtual time.
    Inline,
}

pub(crate) struct Grading {
    grader: Arc<dyn Grader>,
    places: Option<Arc<Semaphore>>,
    deadline: Duration,
    scope: Scope,
}

impl Grading {
    pub(crate) fn new(grader: Arc<dyn Grader>, mode: GradingMode, deadline: Duration, scope: Scope) -> Self {
        let places = match mode {
            GradingMode::Pool { places } => Some(Arc::new(Semaphore::new(places.max(1)))),
            GradingMode::Inline => None,
        };
        Self { grader, places, deadline, scope }
    }

    /// Grades `output` and gives it back. Cancel-safe: a grading that has begun ends on its own, unread.
    pub(crate) async fn grade(
        &self,
        prompt: &Arc<Prompt>,
        output: SampleOutput,
    ) -> Result<(SampleOutput, Grade), String> {
        let Some(places) = &self.places else {
            let grade = self.grader.grade(prompt, &output)?;
            return Ok((output, grade));
        };
        let work = async {
            let place = Arc::clone(places).acquire_owned().await.map_err(|error| error.to_string())?;
            let grader = Arc::clone(&self.grader);
            let prompt = Arc::clone(prompt);
            let graded = self.scope.spawn_blocking(move || {
                let grade = grader.grade(&prompt, &output);
                drop(place);
                grade.map(|grade| (output, grade))
            });
            graded.await.map_err(|error| format!("the scorer panicked: {error}"))?
        };
        let timed = tokio::time::timeout(self.deadline, work).await;
        timed.map_err(|_| format!("no score within reward_s={}", self.deadline.as_secs_f64()))?
    }
}
