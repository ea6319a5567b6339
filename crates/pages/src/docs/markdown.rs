//! Renders one Markdown file. HTML in the file is escaped, and links between files become links between pages.

use std::collections::HashMap;

use pulldown_cmark::{Alignment, CowStr, Event, Options, Parser, Tag, TagEnd, html};

use super::{DOCUMENTS, Document, Link, PICTURES, Section, address, name_of, root_to};
use crate::html::escape;

pub(super) fn render(file: &str, text: &str) -> Document {
    let name = name_of(file).to_owned();
    let mut renderer = Renderer { file, root: root_to(&name), ..Renderer::default() };
    Parser::new_ext(text, Options::ENABLE_TABLES | Options::ENABLE_STRIKETHROUGH)
        .for_each(|event| renderer.read(event));
    let Renderer { events, mut sections, links, .. } = renderer;
    let mut rendered = String::new();
    html::push_html(&mut rendered, events.into_iter());
    sections.retain(|section| !section.title.is_empty() || !section.text.trim().is_empty());
    let title = sections.first().map_or_else(|| name.clone(), |section| section.title.clone());
    Document { name, title, html: rendered, sections, links }
}

#[derive(Default)]
struct Renderer<'a> {
    file: &'a str,
    root: String,
    events: Vec<Event<'a>>,
    /// The event that starts the heading that is being read.
    heading: Option<usize>,
    anchors: HashMap<String, usize>,
    sections: Vec<Section>,
    group: String,
    /// The link that is being read. `None` within one that leads nowhere, which is shown as text.
    link: Option<LinkTarget>,
    label: String,
    links: Vec<Link>,
    shows_picture: bool,
}

enum LinkTarget {
    Web,
    Page { name: String, anchor: String },
}

impl<'a> Renderer<'a> {
    fn read(&mut self, event: Event<'a>) {
        match event {
            Event::Start(Tag::Heading { level, .. }) => {
                self.heading = Some(self.events.len());
                self.sections.push(Section { anchor: String::new(), title: String::new(), text: String::new() });
                let (classes, attrs) = (Vec::new(), Vec::new());
                self.events.push(Event::Start(Tag::Heading { level, id: None, classes, attrs }));
            }
            Event::End(TagEnd::Heading(level)) => {
                let anchor = self.end_heading();
                if level == pulldown_cmark::HeadingLevel::H2 {
                    self.group = self.sections.last().map(|section| section.title.clone()).unwrap_or_default();
                }
                let link = format!(" <a class=\"anchor\" href=\"#{anchor}\" aria-label=\"Link to this section\">#</a>");
                self.events.push(Event::InlineHtml(link.into()));
                self.events.push(Event::End(TagEnd::Heading(level)));
            }
            Event::Start(Tag::Link { link_type, dest_url, title, id }) => {
                self.link = self.target(&dest_url);
                self.label.clear();
                let dest_url = match &self.link {
                    Some(LinkTarget::Web) => dest_url,
                    Some(LinkTarget::Page { name, anchor }) => self.href(name, anchor).into(),
                    None => return,
                };
                self.events.push(Event::Start(Tag::Link { link_type, dest_url, title, id }));
            }
            Event::End(TagEnd::Link) => {
                if let Some(target) = self.link.take() {
                    if let LinkTarget::Page { name, .. } = target {
                        let (group, label) = (self.group.clone(), std::mem::take(&mut self.label));
                        self.links.push(Link { group, label, name });
                    }
                    self.events.push(Event::End(TagEnd::Link));
                }
            }
            Event::Start(Tag::Image { link_type, dest_url, title, id }) => {
                let picture = resolve(self.file, &dest_url);
                self.shows_picture = PICTURES.iter().any(|(file, _)| *file == picture);
                if self.shows_picture {
                    let dest_url = self.href(name_of(&picture), "").into();
                    self.events.push(Event::Start(Tag::Image { link_type, dest_url, title, id }));
                }
            }
            // The description of a picture that is not embedded stays as text.
            Event::End(TagEnd::Image) if !self.shows_picture => {}
            // Alignment would become an inline style, which the content security policy forbids. A wide table scrolls
            // in its own box, which must take the keyboard focus for that.
            Event::Start(Tag::Table(alignments)) => {
                self.html("<div class=\"scroll\" tabindex=\"0\" role=\"group\" aria-label=\"Table\">");
                self.events.push(Event::Start(Tag::Table(vec![Alignment::None; alignments.len()])));
            }
            Event::End(TagEnd::Table) => {
                self.events.push(Event::End(TagEnd::Table));
                self.html("</div>\n");
            }
            Event::Start(Tag::CodeBlock(_)) => self.html("<pre class=\"code\" tabindex=\"0\"><code>"),
            Event::End(TagEnd::CodeBlock) => {
                self.search_text("\n");
                self.html("</code></pre>\n");
            }
            Event::Html(html) | Event::InlineHtml(html) => {
                let comment = html.trim();
                if !(comment.starts_with("<!--") && comment.ends_with("-->")) {
                    self.search_text(&html);
                    self.events.push(Event::Text(html));
                }
            }
            Event::Text(text) => {
                self.search_text(&text);
                self.events.push(Event::Text(text));
            }
            Event::Code(code) => {
                self.search_text(&code);
                self.events.push(Event::Code(code));
            }
            other => {
                if matches!(other, Event::SoftBreak | Event::HardBreak | Event::End(_)) {
                    self.search_text(" ");
                }
                self.events.push(other);
            }
        }
    }

    fn html(&mut self, html: &'static str) {
        self.events.push(Event::Html(CowStr::Borrowed(html)));
    }

    /// Adds text to the current section, and to the heading or the link that is being read.
    fn search_text(&mut self, text: &str) {
        if self.sections.is_empty() {
            self.sections.push(Section { anchor: String::new(), title: String::new(), text: String::new() });
        }
        let Some(section) = self.sections.last_mut() else { return };
        match self.heading {
            Some(_) => section.title.push_str(text),
            None => section.text.push_str(text),
        }
        if self.link.is_some() {
            self.label.push_str(text);
        }
    }

    /// Gives the heading its anchor, as GitHub derives it from the text.
    fn end_heading(&mut self) -> String {
        let Some(section) = self.sections.last_mut() else { return String::new() };
        section.title = section.title.trim().to_owned();
        let slug = slug(&section.title);
        let uses = self.anchors.entry(slug.clone()).or_default();
        section.anchor = if *uses == 0 { slug } else { format!("{slug}-{uses}") };
        *uses += 1;
        let start = self.heading.take().and_then(|index| self.events.get_mut(index));
        if let Some(Event::Start(Tag::Heading { id, .. })) = start {
            *id = Some(section.anchor.clone().into());
        }
        section.anchor.clone()
    }

    /// Where a link leads. `None` for a file that is not embedded, and for schemes other than HTTP.
    fn target(&self, dest: &str) -> Option<LinkTarget> {
        if dest.starts_with("https://") || dest.starts_with("http://") {
            return Some(LinkTarget::Web);
        }
        let (path, anchor) = dest.split_once('#').unwrap_or((dest, ""));
        let file = if path.is_empty() { self.file.to_owned() } else { resolve(self.file, path) };
        let is_embedded = DOCUMENTS.iter().any(|(document, _)| *document == file);
        // Links within the same text are used by tests, whose text is no document.
        let is_own = path.is_empty();
        (is_embedded || is_own).then(|| LinkTarget::Page { name: name_of(&file).to_owned(), anchor: anchor.to_owned() })
    }

    fn href(&self, name: &str, anchor: &str) -> String {
        let hash = if anchor.is_empty() { "" } else { "#" };
        escape(&format!("{}{}{hash}{anchor}", self.root, address(name)))
    }
}

/// The file of the repository that a relative link in `file` names.
fn resolve(file: &str, link: &str) -> String {
    let mut parts: Vec<&str> = file.split('/').collect();
    parts.pop();
    for part in link.split('/') {
        match part {
            "." | "" => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

fn slug(title: &str) -> String {
    let letters = title.chars().filter(|letter| letter.is_alphanumeric() || matches!(letter, '_' | '-' | ' '));
    letters.flat_map(char::to_lowercase).map(|letter| if letter == ' ' { '-' } else { letter }).collect()
}
