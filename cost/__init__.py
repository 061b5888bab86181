"""Usage, prices and the ledger: tokens used, their cost, and the baseline cost of the same tokens elsewhere.

The cost of a usage is computed in whole nano-dollars:

    price = price_from_usd(version="2026-11-01", input_usd="2.50", output_usd="10")  # cost.prices
    usage = estimated(input_tokens=800, output_tokens=200)  # cost.usage
    assert usd(price.cost_nanousd(usage)) == Decimal("0.004")
"""
