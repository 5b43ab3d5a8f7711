"""The link of 5G NR: coding schemes chosen by the SNR, transport blocks, errors from tables, HARQ."""
