//! A table, and its three looks.

use comfy_table::{CellAlignment, presets};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    pub title: String,
    pub head: Vec<String>,
    pub rows: Vec<Vec<String>>,
}

impl Table {
    pub fn new(title: &str, head: &[&str]) -> Self {
        Self {
            title: title.to_owned(),
            head: head.iter().map(|name| (*name).to_owned()).collect(),
            rows: Vec::new(),
        }
    }

    pub fn terminal(&self) -> String {
        let mut table = comfy_table::Table::new();
        table.load_style(presets::NOTHING).set_header(&self.head);
        table.add_rows(&self.rows);
        for column in table.column_iter_mut() {
            column.set_cell_alignment(CellAlignment::Right);
        }
        format!("\n{}\n{}\n", self.title, table.trim_fmt())
    }

    pub fn markdown(&self) -> String {
        let plain = |cell: &String| escape(cell).replace('|', "\\|").replace('\n', " ");
        let line =
            |cells: &[String]| format!("| {} |\n", cells.iter().map(plain).collect::<Vec<_>>().join(" | "));
        let rule = format!("|{}\n", "--:|".repeat(self.head.len()));
        let rows: String = self.rows.iter().map(|row| line(row)).collect();
        format!("\n### {}\n\n{}{rule}{rows}", self.title, line(&self.head))
    }

    pub fn html(&self) -> String {
        let mut out = format!("<h3>{}</h3><table><thead><tr>", escape(&self.title));
        out.extend(self.head.iter().map(|name| format!("<th scope=\"col\">{}</th>", escape(name))));
        out += "</tr></thead><tbody>";
        for row in &self.rows {
            out += "<tr>";
            out.extend(row.iter().map(|cell| format!("<td>{}</td>", escape(cell))));
            out += "</tr>";
        }
        out + "</tbody></table>"
    }
}

/// Text within HTML and SVG, attributes included.
pub(super) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_three_looks() {
        let mut table = Table::new("A & B", &["mode", "ms"]);
        table.rows.push(vec!["<kv>".to_owned(), "12".to_owned()]);
        assert!(table.terminal().starts_with("\nA & B\n mode  ms"), "{}", table.terminal());
        assert_eq!(table.markdown(), "\n### A & B\n\n| mode | ms |\n|--:|--:|\n| &lt;kv&gt; | 12 |\n");
        assert!(table.html().contains("A &amp; B") && table.html().contains("<td>&lt;kv&gt;</td>"));
    }
}
