"""Tools that nothing serving imports: launch plans and the simulator."""
