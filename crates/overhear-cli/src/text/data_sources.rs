// SPDX-License-Identifier: MIT OR Apache-2.0
//! Listings of data sources.

use overhear_session::sampling::DataSourceListing;

use super::columns::Table;
use super::width::Width;
use crate::format::{csv_text, Format};

/// The columns in CSV.
pub(crate) const CSV_COLUMNS: [&str; 2] = ["name", "description"];

/// Renders the listing, as text for lines of this width.
#[must_use]
pub(crate) fn render(listing: &DataSourceListing, format: Format, width: Width) -> String {
    let rows = listing.data_sources.iter();
    let rows = rows.map(|source| [source.name.clone(), source.description.clone()]);
    match format {
        Format::Json => serde_json::to_string_pretty(listing).unwrap_or_default() + "\n",
        Format::Csv => csv_text(&CSV_COLUMNS, rows),
        Format::Text => {
            let mut table = Table::new(&[("data source", false), ("meaning", false)]).keys(1);
            rows.for_each(|row| table.row(row.into()));
            table.render(width)
        }
    }
}

#[cfg(test)]
mod tests {
    use overhear_session::sampling::{DataSourceListing, ListedDataSource};

    use super::render;
    use crate::format::Format;
    use crate::text::width::Width;

    #[test]
    fn every_format_has_name_and_description() {
        let listing = DataSourceListing {
            overhear_version: "0.1.0".to_owned(),
            data_sources: vec![ListedDataSource {
                name: "psi:cpu".to_owned(),
                description: "time, of all".to_owned(),
            }],
        };
        let text = |format| render(&listing, format, Width::columns(80));
        assert!(text(Format::Text).contains("psi:cpu"));
        assert_eq!(
            text(Format::Csv).lines().nth(1),
            Some("psi:cpu,\"time, of all\"")
        );
        let json: serde_json::Value = serde_json::from_str(&text(Format::Json)).unwrap();
        assert_eq!(json["data_sources"][0]["name"], "psi:cpu");
    }
}
