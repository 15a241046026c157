//! Makes the prompt of a request: the stored ids, followed by the ids of the text that the template renders
//! after them.
//!
//! The text behind the stored ids is found without knowledge of the model's family. The template renders the
//! conversation with a sentinel as the content of the assistant's last message, and only the text behind the
//! sentinel is encoded. The sentinel shows the place only if it appears exactly once, and if the text before
//! the assistant's message is the same with and without the new messages. Otherwise the path forks.

use serde_json::{Value, json};

use crate::find::{Found, new_part};
use crate::forest::{HistoryPolicy, Trajectory};
use crate::message::{for_template, tools_for_template};
use crate::prompt::{About, Plan, Prompt, Whole};
use crate::request::{Request, RequestPrompt};
use crate::template::{Chat, Template};
use crate::turn::{Origin, Turn};
use crate::{TemplateError, TrajectoryError, TurnId};

impl Trajectory {
    /// The prompt of a request, or what must be rendered for it.
    ///
    /// # Errors
    /// The template cannot render the conversation, or the tokenizer cannot encode it.
    pub fn plan(&self, request: &Request, template: &dyn Template) -> Result<Plan, TrajectoryError> {
        let found = self.find(request);
        let about = |origin: Origin| About {
            parent: found.turn,
            origin,
            key: request.key,
            body: request.body,
            messages: new_part(request, found.used),
        };
        let origin = if found.tools_changed { Origin::ToolsChanged } else { Origin::Spliced };
        if let RequestPrompt::Ids(ids) = &request.prompt {
            let origin = if found.turn.is_some() { origin } else { Origin::Started };
            return Ok(Plan::Ready(Prompt { ids: ids.clone(), about: about(origin) }));
        }
        let Some(turn) = found.turn.and_then(|turn| self.turn(turn)) else {
            let origin = if found.tools_changed { Origin::ToolsChanged } else { Origin::Started };
            return Ok(Plan::Whole(Whole { about: about(origin) }));
        };
        if let RequestPrompt::Text(text) = &request.prompt {
            let mut ids = self.path_ids(turn.id)?;
            ids.extend(template.encode(text.get(found.used..).unwrap_or_default())?);
            return Ok(Plan::Ready(Prompt { ids, about: about(origin) }));
        }
        match self.policy() {
            HistoryPolicy::Append => match text_behind(request, &found, template)? {
                Some(text) => {
                    let ids = self.spliced(turn, &text, template)?;
                    Ok(Plan::Ready(Prompt { ids, about: about(origin) }))
                }
                None => Ok(Plan::Whole(Whole { about: about(Origin::SentinelLost) })),
            },
            HistoryPolicy::Template => {
                let Some((ids, is_kept)) = self.as_template_shows(request, &found, turn, template)? else {
                    return Ok(Plan::Whole(Whole { about: about(Origin::SentinelLost) }));
                };
                let origin = if is_kept { origin } else { Origin::Dropped };
                Ok(Plan::Ready(Prompt { ids, about: about(origin) }))
            }
        }
    }

    /// The prompt of a request. A whole conversation is rendered and encoded here.
    ///
    /// # Errors
    /// The errors of [`plan`](Self::plan).
    pub fn prompt(&self, request: &Request, template: &dyn Template) -> Result<Prompt, TrajectoryError> {
        match self.plan(request, template)? {
            Plan::Ready(prompt) => Ok(prompt),
            Plan::Whole(whole) => {
                let ids = Self::render_whole(request, template)?;
                Ok(whole.with_ids(ids))
            }
        }
    }

    /// The ids of a request's whole conversation, with nothing spliced.
    ///
    /// # Errors
    /// The template cannot render the conversation, or the tokenizer cannot encode it.
    pub fn render_whole(request: &Request, template: &dyn Template) -> Result<Vec<u32>, TrajectoryError> {
        let ids = match &request.prompt {
            RequestPrompt::Chat { values, .. } => {
                let messages: Vec<Value> = values.iter().map(for_template).collect();
                template.encode(&render(request, &messages, true, template)?)?
            }
            RequestPrompt::Text(text) => template.encode(text)?,
            RequestPrompt::Ids(ids) => ids.clone(),
        };
        Ok(ids)
    }

    /// The prompt that continues a turn's path with given ids, which the policy did not sample.
    ///
    /// # Errors
    /// There is no such turn.
    pub fn extend(&self, turn: TurnId, ids: &[u32]) -> Result<Prompt, TrajectoryError> {
        let key = self.known(turn)?.key;
        let mut all = self.path_ids(turn)?;
        all.extend_from_slice(ids);
        let about =
            About { parent: Some(turn), origin: Origin::Spliced, key, body: 0, messages: String::new() };
        Ok(Prompt { ids: all, about })
    }

    /// The ids of a turn's path and of the text that follows its answer. The text begins with the template's
    /// end of the turn. If the model sampled this token, it is not repeated. If the turn was cut off, the
    /// token of the text takes its place, and is not trained on.
    fn spliced(&self, turn: &Turn, text: &str, template: &dyn Template) -> Result<Vec<u32>, TrajectoryError> {
        let behind = template.encode(text)?;
        let mut ids = self.path_ids(turn.id)?;
        let is_sampled =
            ids.last() == behind.first() && behind.first().is_some_and(|id| template.is_end(*id));
        ids.extend_from_slice(&behind[usize::from(is_sampled)..]);
        Ok(ids)
    }

    /// The ids of the conversation as the template shows it, and whether all of the path was kept. The stored
    /// ids are kept run by run, up to the first run whose text differs from the template's rendering. `None`
    /// if the template refuses the sampled texts as messages.
    fn as_template_shows(
        &self,
        request: &Request,
        found: &Found,
        turn: &Turn,
        template: &dyn Template,
    ) -> Result<Option<(Vec<u32>, bool)>, TrajectoryError> {
        let mut messages: Vec<Value> = request.messages().iter().map(for_template).collect();
        for (index, own) in &found.own {
            messages[*index] = said(&template.decode(without_end(self.known(*own)?, template)));
        }
        let Ok(rendered) = render(request, &messages, true, template) else { return Ok(None) };
        let mut pieces: Vec<_> = self.pieces(turn).collect();
        pieces.reverse();
        let mut rest = rendered.as_str();
        let mut ids = Vec::new();
        for piece in pieces {
            let own = &piece.turn.ids[..(piece.end - piece.turn.start) as usize];
            let (input, sampled) = own.split_at(own.len().min(piece.turn.input_tokens as usize));
            let (sampled, end) = split_end(sampled, template);
            for run in [input, sampled, end] {
                let Some(behind) = rest.strip_prefix(template.decode(run).as_str()) else {
                    ids.extend(template.encode(rest)?);
                    return Ok(Some((ids, false)));
                };
                ids.extend_from_slice(run);
                rest = behind;
            }
        }
        ids.extend(template.encode(rest)?);
        Ok(Some((ids, true)))
    }
}

/// The text that the template renders behind the last message of a stored turn; `None` if the sentinel does
/// not show where this text begins.
fn text_behind(
    request: &Request,
    found: &Found,
    template: &dyn Template,
) -> Result<Option<String>, TrajectoryError> {
    let Some((last, _)) = found.own.last().copied() else { return Ok(None) };
    let mut messages: Vec<Value> = request.messages().iter().map(for_template).collect();
    // The sentinel depends on the whole request, so no message of the request contains it.
    let digest = request.digest();
    let sentinel = |index: usize| format!("sentinel{digest:032x}n{index}e");
    for (index, _) in &found.own {
        messages[*index] = said(&sentinel(*index));
    }
    // A template may refuse the message with the sentinel, for example because it requires the tool calls to
    // which results belong. Then the sentinel does not show the place.
    let Ok(text) = render(request, &messages, true, template) else { return Ok(None) };
    let shown = sentinel(last);
    let mut parts = text.split(shown.as_str());
    let (Some(before), Some(behind), None) = (parts.next(), parts.next(), parts.next()) else {
        return Ok(None);
    };
    if last > 0 {
        let Ok(earlier) = render(request, &messages[..last], false, template) else { return Ok(None) };
        if !before.starts_with(&earlier) {
            return Ok(None);
        }
    }
    Ok(Some(behind.to_owned()))
}

fn render(
    request: &Request,
    messages: &[Value],
    add_generation_prompt: bool,
    template: &dyn Template,
) -> Result<String, TemplateError> {
    let tools = request.tools.as_ref().map(tools_for_template);
    let arguments = request.arguments.as_ref();
    template.render(&Chat { messages, tools: tools.as_ref(), arguments, add_generation_prompt })
}

/// An assistant's message of this text.
fn said(content: &str) -> Value {
    json!({ "role": "assistant", "content": content })
}

/// The sampled ids without the end-of-sequence token.
fn without_end<'a>(turn: &'a Turn, template: &dyn Template) -> &'a [u32] {
    split_end(turn.sampled_ids(), template).0
}

fn split_end<'a>(sampled: &'a [u32], template: &dyn Template) -> (&'a [u32], &'a [u32]) {
    let ends = sampled.last().is_some_and(|id| template.is_end(*id));
    sampled.split_at(sampled.len() - usize::from(ends))
}

#[cfg(test)]
mod tests;
