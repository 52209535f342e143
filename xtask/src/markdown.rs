//! Splits a Markdown page into its fenced blocks and the lines between them: as much of Markdown as
//! our checks need.

/// A piece of a page. Lines are numbered from 1.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Piece<'a> {
    /// A line outside of fenced blocks.
    Prose { line: usize, text: &'a str },
    /// A fenced block: the line its body begins on, the first word after the fence, and the body.
    Block { line: usize, language: &'a str, body: Vec<&'a str> },
}

/// Splits a page.
pub(crate) fn pieces(page: &str) -> Vec<Piece<'_>> {
    let mut pieces = Vec::new();
    let mut lines = page.lines().enumerate();
    while let Some((index, text)) = lines.next() {
        let Some(fence) = Fence::opened_by(text) else {
            pieces.push(Piece::Prose { line: index + 1, text });
            continue;
        };
        let body = lines
            .by_ref()
            .map(|(_, line)| line)
            .take_while(|line| !fence.is_closed_by(line))
            .map(|line| fence.dedent(line))
            .collect();
        pieces.push(Piece::Block { line: index + 2, language: fence.language, body });
    }
    pieces
}

struct Fence<'a> {
    mark: char,
    length: usize,
    indent: usize,
    language: &'a str,
}

impl<'a> Fence<'a> {
    fn opened_by(line: &'a str) -> Option<Fence<'a>> {
        let text = line.trim_start();
        let mark = text.chars().next().filter(|mark| ['`', '~'].contains(mark))?;
        let info = text.trim_start_matches(mark);
        let length = text.len() - info.len();
        // "```code```" on one line is code within prose.
        if length < 3 || info.contains(mark) {
            return None;
        }
        let language =
            info.split([' ', ',', '{']).find(|word| !word.is_empty()).unwrap_or_default();
        Some(Fence { mark, length, indent: line.len() - text.len(), language })
    }

    fn is_closed_by(&self, line: &str) -> bool {
        let line = line.trim();
        line.len() >= self.length && line.chars().all(|c| c == self.mark)
    }

    /// Removes the indentation of the fence: a block within a list is indented.
    fn dedent<'l>(&self, line: &'l str) -> &'l str {
        let blank = line.len() - line.trim_start_matches(' ').len();
        &line[blank.min(self.indent)..]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocks(page: &str) -> Vec<(usize, &str, Vec<&str>)> {
        pieces(page)
            .into_iter()
            .filter_map(|piece| match piece {
                Piece::Block { line, language, body } => Some((line, language, body)),
                Piece::Prose { .. } => None,
            })
            .collect()
    }

    #[test]
    fn blocks_and_prose_are_told_apart() {
        let page = "one\n```console\n$ ls\n```\n`a` and ```b```\n";
        assert_eq!(
            pieces(page),
            [
                Piece::Prose { line: 1, text: "one" },
                Piece::Block { line: 3, language: "console", body: vec!["$ ls"] },
                Piece::Prose { line: 5, text: "`a` and ```b```" },
            ]
        );
    }

    #[test]
    fn a_longer_fence_holds_a_shorter_one() {
        let page = "````text\n```console\n$ rm\n```\n````\n~~~ rust,no_run\nx\n~~~";
        assert_eq!(
            blocks(page),
            [(2, "text", vec!["```console", "$ rm", "```"]), (7, "rust", vec!["x"])]
        );
    }

    #[test]
    fn a_block_in_a_list_loses_its_indent() {
        assert_eq!(
            blocks("1. so:\n   ```console\n   $ a\n     b\n\n   ```\n"),
            [(3, "console", vec!["$ a", "  b", ""])]
        );
    }
}
