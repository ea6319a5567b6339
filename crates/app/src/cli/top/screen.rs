//! The terminal of `windlass top`: the alternate screen in raw mode. Both end with the value.

use std::io::Write;

use anyhow::Context;
use crossterm::cursor::{Hide, MoveTo, Show};
use crossterm::terminal::{
    Clear, ClearType, EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode, size,
};
use crossterm::{execute, queue};

use super::View;
use super::frame::{Style, frame};

pub(super) struct Screen;

impl Screen {
    pub(super) fn open() -> anyhow::Result<Self> {
        enable_raw_mode().context("cannot use the terminal")?;
        let screen = Self;
        execute!(std::io::stdout(), EnterAlternateScreen, Hide).context("cannot use the terminal")?;
        Ok(screen)
    }

    pub(super) fn draw(&mut self, view: &View) -> anyhow::Result<()> {
        let (width, height) = size().unwrap_or((80, 24));
        let mut out = std::io::stdout().lock();
        for (row, line) in frame(view, width, height).iter().enumerate() {
            queue!(out, MoveTo(0, row as u16))?;
            let style = match line.style {
                Style::Plain => "0",
                Style::Title => "1",
                Style::Header => "2",
                Style::Selected => "7",
                Style::Alert => "31",
            };
            write!(out, "\u{1b}[{style}m{}\u{1b}[0m", line.text)?;
            queue!(out, Clear(ClearType::UntilNewLine))?;
        }
        queue!(out, Clear(ClearType::FromCursorDown))?;
        out.flush().context("cannot write to the terminal")
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ignored = execute!(std::io::stdout(), Show, LeaveAlternateScreen);
        let _ignored = disable_raw_mode();
    }
}
