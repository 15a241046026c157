//! Turns a runner's result into a graded sample, for samples that are trajectories.
//!
//! The sample's tokens are the sampled tokens that its rows train, turn after turn, so that gates, meters and
//! the token book count a trajectory as they count an answer. Its rows are kept beside these tokens.

use std::sync::Arc;

use rolldock_dispatch::{CarriedSample, FinishReason, VersionSpan};
use rolldock_trajectory::{Row, Trajectory, TurnId};
use tokio::time::Instant;

use super::calls::{ModelCalls, TrajectoryFailure, TurnAnswer};
use super::runner::{EndedTrajectory, TrajectoryJob, TrajectoryRunner};
use super::{Generated, SampleRequest, Unfinished};
use crate::engine::SampleOutput;
use crate::rollout::grading::{Grade, Ungraded};
use crate::rollout::waits::Phase;
use crate::rollout::{Sample, SampleRows};

/// The trajectories that ended and were graded, and the turns that they train.
const TRAJECTORIES: &str = "rolldock_trajectories_total";
const TURNS: &str = "rolldock_trajectory_turns_total";

impl SampleRequest<'_> {
    /// Generates one turn. Cancel-safe.
    pub(crate) async fn answer(&self) -> Result<TurnAnswer, Unfinished> {
        let Generated { samples, spent, server, .. } = self.generate().await?;
        let sampled = samples.into_iter().next();
        let sampled =
            sampled.ok_or_else(|| Unfinished::Failed("expected one sample, found none".to_owned()))?;
        Ok(TurnAnswer { sampled, server, spent })
    }

    /// Runs the trajectory of the request's sample to its end, and grades it. Cancel-safe.
    pub(crate) async fn run_trajectory(
        &self,
        runner: &dyn TrajectoryRunner,
    ) -> Result<Vec<Sample>, Unfinished> {
        let limit = self.context.config.timeouts.sample;
        let versions_from = self.policy_version();
        let job = self.job(Instant::now() + limit);
        let Ok(ended) = tokio::time::timeout(limit, runner.run(job)).await else {
            return Err(Unfinished::Failed(format!("not finished within sample_s={}", limit.as_secs_f64())));
        };
        let ended = ended.map_err(|TrajectoryFailure { reason }| Unfinished::Failed(reason))?;
        let versions = (versions_from, self.policy_version());
        Ok(vec![Box::pin(self.grade_trajectory(ended, versions)).await?])
    }

    fn policy_version(&self) -> u64 {
        self.context.versions.served()
    }

    fn job(&self, deadline: Instant) -> TrajectoryJob {
        let context = self.context;
        let attempt = self.dispatch.first_attempt;
        TrajectoryJob {
            uid: format!("{}-{}-{}", context.config.run_id, self.dispatch.id, self.first).into(),
            prompt: Arc::clone(&self.dispatch.prompt),
            index: self.first,
            seed: self.first_seed(attempt),
            group_seed: self.first_seed(attempt) - u64::from(self.first),
            sampling: Arc::clone(&context.sampling),
            deadline,
            cut: context.cut.clone(),
            calls: ModelCalls::new(self),
        }
    }

    /// Grades a trajectory: by its own reward, or by the recipe's scorer on the last answer.
    async fn grade_trajectory(
        &self,
        ended: EndedTrajectory,
        versions: (u64, u64),
    ) -> Result<Sample, Unfinished> {
        let EndedTrajectory { trajectory, reward, end, is_truncated, reencoded, metadata, .. } = ended;
        let (mut spent, server) = (ended.spent, ended.server);
        let rows = trajectory.rows();
        let mut trained: Vec<TurnId> = rows
            .iter()
            .flat_map(|row| &row.turns)
            .filter(|turn| turn.is_trained)
            .map(|turn| turn.turn)
            .collect();
        trained.sort_unstable();
        let Some(last) = trained.last().and_then(|last| trajectory.turn(*last)) else {
            return Err(Unfinished::Failed(format!(
                "the trajectory has no turn to train; it ended with {end}"
            )));
        };
        let finish_reason = if is_truncated { FinishReason::Length } else { FinishReason::Stop };
        let carried = joined(self.first, self.dispatch.first_attempt, &trajectory, &trained, versions);
        let length = carried.tokens();
        let asked_at = Instant::now();
        let grade = match reward {
            Some(reward) => Grade::of_reward(reward, self.context.grades.overlong_penalty(length)),
            None => {
                let answer = SampleOutput {
                    response_ids: last.sampled_ids().to_vec(),
                    logprobs: Vec::new(),
                    finish_reason: last.finish_reason(),
                    version_spans: Vec::new(),
                };
                let grade = self.score_answer(answer, u64::from(length)).await?;
                Grade { overlong_penalty: self.context.grades.overlong_penalty(length), ..grade }
            }
        };
        spent.reward = asked_at.elapsed();
        let output = SampleOutput {
            response_ids: carried.response_ids.clone(),
            logprobs: carried.logprobs.clone(),
            finish_reason,
            version_spans: carried.version_spans.clone(),
        };
        let sample = self.sample(carried, output, grade, &server, spent);
        let is_reencoded = |row: &Row| row.turns.iter().any(|turn| reencoded.contains(&turn.turn));
        let of_rows = rows.iter().map(is_reencoded).collect();
        let paths = SampleRows { rows, reencoded: of_rows, end, metadata };
        let sample = Sample { trajectory: Some(Arc::new(paths)), ..sample };
        metrics::counter!(TRAJECTORIES, "end" => end).increment(1);
        metrics::counter!(TURNS).increment(trained.len() as u64);
        self.context.meter.sample_finished(&sample, spent.engine);
        Ok(sample)
    }

    /// The scorer's grade of the last answer. If the grading is cut off, the trajectory is lost too.
    async fn score_answer(&self, answer: SampleOutput, tokens: u64) -> Result<Grade, Unfinished> {
        let _in_reward = self.context.waits.enter(Phase::Reward, self.subject());
        let (book, id) = (&self.context.tokens, self.dispatch.id);
        // If this future is dropped, the tokens stay counted as ungraded.
        book.awaits_grade(id, tokens);
        let graded = self.context.grades.grade(&self.dispatch.prompt, answer, self.context.is_cut()).await;
        book.grade_is_decided(id, tokens);
        match graded {
            Ok((_, grade)) => Ok(grade),
            Err(Ungraded::Failed(reason)) => {
                book.lost(id, tokens, rolldock_dispatch::Waste::Ungraded);
                Err(Unfinished::Failed(reason))
            }
            Err(Ungraded::Cut(_)) => Err(Unfinished::Cut(None)),
        }
    }
}

/// The sampled tokens of these turns, one after the other.
fn joined(
    index: u32,
    attempt: u32,
    trajectory: &Trajectory,
    turns: &[TurnId],
    versions: (u64, u64),
) -> CarriedSample {
    let mut sample = CarriedSample::new(index, attempt);
    let turns = || turns.iter().filter_map(|turn| trajectory.turn(*turn));
    let has_logprobs = turns().all(|turn| !turn.logprobs().is_empty());
    for turn in turns() {
        let offset = sample.tokens();
        sample.response_ids.extend_from_slice(turn.sampled_ids());
        if has_logprobs {
            sample.logprobs.extend_from_slice(turn.logprobs());
        }
        sample.versions_reported &= turn.versions_reported();
        sample.segments += 1;
        for span in turn.version_spans() {
            let (oldest, newest) = span.number().map_or(versions, |version| (version, version));
            sample.policy_version_min = sample.policy_version_min.min(oldest);
            sample.policy_version_max = sample.policy_version_max.max(newest);
            sample.version_spans.push(VersionSpan {
                version: Arc::clone(&span.version),
                start: offset + span.start,
                end: offset + span.end,
            });
        }
    }
    sample
}
