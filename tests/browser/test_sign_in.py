"""Signing in, as a person with a browser does it."""

from playwright.async_api import Browser

from tests.browser.site import Site, visiting


async def test_a_person_signs_in_and_out(browser: Browser, site: Site) -> None:
    """The password opens the dashboards, and after signing out nothing of them is left open."""
    async with visiting(browser, site) as visitor:
        await visitor.open("/dashboard")
        assert "/dashboard/sign-in" in visitor.page.url
        await visitor.is_fine()
        await visitor.sign_in("tess@northwind.example")
        await visitor.is_fine()
        cookies = {each["name"]: each for each in await visitor.context.cookies()}
        session = cookies["__Host-weighbridge"]
        assert session["secure"]
        assert session["httpOnly"]
        assert session["sameSite"] == "Lax"
        await visitor.page.get_by_role("button", name="Sign out").first.click()
        await visitor.page.wait_for_url(lambda url: "/sign-in" in url)
        await visitor.open("/dashboard/teams/support")
        assert "/dashboard/sign-in" in visitor.page.url
