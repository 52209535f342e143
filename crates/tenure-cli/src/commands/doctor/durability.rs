//! Whether commits wait for the disk: how an operator sets this for a whole installation.

use anyhow::Result;
use tenure::engine::store::postgres::Durability;
use tenure::json;

use crate::{Answer, Session};

/// As a person says it.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
pub(super) enum How {
    /// Always
    On,
    /// Unless a session or role says otherwise: a crash of the server may lose what it has answered
    Off,
}

pub(super) fn set(how: How, session: &mut Session) -> Result<Answer> {
    let durability = match how {
        How::On => Durability::On,
        How::Off => Durability::Off,
    };
    let was = session.target()?.set_durability(durability)?;
    if session.out.is_json() {
        session.out.document(&json::durability(was, durability))?;
        return Ok(Answer::Yes);
    }
    let (was, durability) = (was.name(), durability.name());
    session.out.line(&format!("durability was {was} and is now {durability}"))?;
    if durability == "off" {
        session.out.say(
            "where a role or session says synchronous_commit = off, a crash of the server may now lose jobs that were \
             acknowledged, and may give one token to two workers",
        )?;
    }
    Ok(Answer::Yes)
}
