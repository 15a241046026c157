//! The prompt of a turn before it is sampled.

use crate::{Origin, TurnId};

/// The prompt of one turn: the ids to send to the engine, and what the trajectory stores about them.
#[derive(Debug, Clone, PartialEq)]
pub struct Prompt {
    pub(crate) ids: Vec<u32>,
    pub(crate) about: About,
}

/// What is known of a prompt apart from its ids.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct About {
    pub(crate) parent: Option<TurnId>,
    pub(crate) origin: Origin,
    pub(crate) key: u128,
    pub(crate) body: u128,
    /// The messages of the prompt as text, for [`Turn::messages`](crate::Turn).
    pub(crate) messages: String,
}

impl Prompt {
    /// All ids of the prompt, in the form that the engine gets.
    pub fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// The turn whose messages the request continues.
    pub fn parent(&self) -> Option<TurnId> {
        self.about.parent
    }

    /// How the prompt came about.
    pub fn origin(&self) -> Origin {
        self.about.origin
    }

    /// The prompt with the ids that a server chose. Such a server takes no ids and encodes the conversation
    /// itself. A prefix that equals the ids of an earlier turn is shared with that turn.
    pub fn with_ids(self, ids: Vec<u32>) -> Self {
        Self { ids, ..self }
    }
}

/// What [`Trajectory::plan`](crate::Trajectory::plan) found.
#[derive(Debug, Clone, PartialEq)]
pub enum Plan {
    /// The prompt is known.
    Ready(Prompt),
    /// Nothing that is stored can be spliced: the whole conversation must be rendered and encoded, by the
    /// engine or by [`Trajectory::render_whole`](crate::Trajectory::render_whole).
    Whole(Whole),
}

/// A prompt whose ids are still to be rendered.
#[derive(Debug, Clone, PartialEq)]
pub struct Whole {
    pub(crate) about: About,
}

impl Whole {
    /// Why nothing can be spliced.
    pub fn origin(&self) -> Origin {
        self.about.origin
    }

    /// The prompt with the ids of the whole conversation.
    pub fn with_ids(self, ids: Vec<u32>) -> Prompt {
        Prompt { ids, about: self.about }
    }
}
