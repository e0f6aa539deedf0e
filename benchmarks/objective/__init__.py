"""The objective's time and memory against its floor, the published schedule of passes, and peers.

python -m benchmarks.objective                 measure here, print the table (GPU: real sizes; CPU: small ones)
python -m benchmarks.objective --sweep         first choose each kernel's shape by measuring, and say which won
python -m benchmarks.objective --save          keep the table in benchmarks/objective/README.md, the numbers beside it
python -m benchmarks.objective --once          every kernel once and nothing else, for a profiler
"""
