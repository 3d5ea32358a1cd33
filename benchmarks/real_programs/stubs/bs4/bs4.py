"""Never reached: only the data set that is not used has HTML."""


class BeautifulSoup: ...


class NavigableString: ...
