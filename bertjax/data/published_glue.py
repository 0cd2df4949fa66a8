"""What was published of GLUE, to be shown beside one's own: dev sets, single models, in percent.

CoLA Matthews, STS-B Pearson (ELECTRA: Spearman), MRPC and QQP accuracy (of the first and last row
the source does not say), MNLI matched. Of: the released code of Sanh et al. 2019 (BERT-base and
DistilBERT, uncased; the paper's table 1 has other figures for MNLI, which contradict its averages);
Liu et al. 2019, table 5 (BERT-large and RoBERTa); Lan et al. 2020, table 9 (ALBERT, 1.5 M steps);
Clark et al. 2020, table 3 (ELECTRA, 1.75 M steps).
"""

TASKS = ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli")

ROWS: dict[str, tuple[float | None, ...]] = {
    "BERT-base": (56.3, 92.7, 88.6, 89.0, 89.6, 84.7, 91.8, 69.3, 53.5),
    "BERT-large": (60.6, 93.2, 88.0, 90.0, 91.3, 86.6, 92.3, 70.4, None),
    "RoBERTa-large": (68.0, 96.4, 90.9, 92.4, 92.2, 90.2, 94.7, 86.6, 91.3),
    "ALBERT-xxlarge": (71.4, 96.9, 90.9, 93.0, 92.2, 90.8, 95.3, 89.2, None),
    "ELECTRA-large": (69.1, 96.9, 90.8, 92.6, 92.4, 90.9, 95.0, 88.0, None),
    "DistilBERT": (51.3, 91.3, 87.5, 86.9, 88.5, 82.1, 89.2, 59.9, 56.3),
}
