"""What a party's view gives away: attacks on views, and audits that run them on a run folder."""
